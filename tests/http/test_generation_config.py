"""``generation_config.json``: what requests get that do not say, and where one can see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mock_server import MockServer


def response(server: MockServer, **fields: object) -> dict[str, object]:
    status, text = server.call("/v1/responses", json.dumps({"input": "q", **fields}).encode())
    assert status == 200, text
    answer: dict[str, object] = json.loads(text)
    return answer


def test_recommendations_are_followed_shown_and_logged(tmp_path: Path) -> None:
    config = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with MockServer("--generation-config", str(tmp_path)) as server:
        assert (response(server)["temperature"], response(server)["top_p"]) == (0.25, 0.5)
        assert response(server, temperature=1.5)["temperature"] == 1.5
        shown = json.loads(server.text("/server_info"))["generation_config"]
        assert (shown["temperature"], shown["top_k"], shown["min_p"]) == (0.25, 7, None)
        assert any("0.25" in line for line in server.log)


@pytest.mark.parametrize("choice", ["none", "vllm", "auto"])
def test_without_a_file_the_defaults_are_openais(choice: str) -> None:
    with MockServer("--generation-config", choice) as server:
        assert response(server)["temperature"] == 1.0
