"""The log as JSON, and what stands in it."""

from __future__ import annotations

import json
import urllib.request

from tests.mock_server import MockServer


def test_json_lines_carry_the_request_id() -> None:
    with MockServer("--log-format", "json", log="debug") as server:
        request = urllib.request.Request(server.url + "/v1/models", headers={"x-request-id": "job-7"})
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["x-request-id"] == "job-7"

        def answered() -> list[dict[str, object]]:
            lines = [json.loads(line) for line in server.log]
            return [line for line in lines if line.get("request") == "job-7"]

        server.wait_until("it is logged", answered)
        [line] = answered()
    assert line["message"] == "answered"
    assert (line["level"], line["method"], line["handler"], line["status"]) == (
        "DEBUG",
        "GET",
        "/v1/models",
        200,
    )
