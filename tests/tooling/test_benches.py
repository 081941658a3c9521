"""The load client and the driver's arithmetic, against a small server that streams what it is told."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benches.cpu.http_load import Server, Stream, measure, rates
from benches.cpu.limits import PARAMETERS, Limits
from benches.cpu.run import better, table
from benches.cpu.workload import Result, Workload, from_arguments, to_arguments

Handler = Callable[[dict[str, object]], list[bytes]]


def events(request: dict[str, object], counted: int | None = None) -> list[bytes]:
    """A right answer in OpenAI's streaming form; ``counted`` overrides the number of tokens it claims."""
    wanted = request["max_tokens"]
    assert isinstance(wanted, int)
    chunks: list[dict[str, object]] = [{"choices": [{"text": "x"}], "usage": None} for _ in range(wanted)]
    chunks.append({"choices": [], "usage": {"completion_tokens": wanted if counted is None else counted}})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return [
        head,
        *(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks),
        b"data: [DONE]\n\n",
    ]


async def with_server(handler: Handler, use: Callable[[Server], Awaitable[None]]) -> list[dict[str, object]]:
    """Runs ``use`` against a server that answers with ``handler``; returns the bodies it received."""
    bodies: list[dict[str, object]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        for part in handler(bodies[-1]):
            writer.write(part)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await use(Server.at(f"http://127.0.0.1:{port}", "m"))
    return bodies


SMALL = Workload(concurrency=(1, 4), prompt_tokens=5, output_tokens=3, prefill_tokens=9, prefill_repeats=2)


def test_the_whole_workload_is_sent_and_every_rate_is_filled() -> None:
    result = Result("server", "1", "f32", "http")

    async def use(server: Server) -> None:
        await measure(server, SMALL, result)

    bodies = asyncio.run(with_server(events, use))
    assert [len(body["prompt"]) for body in bodies] == [5] * 6 + [9] * 2  # type: ignore[arg-type]
    assert all(body["ignore_eos"] and body["stream"] and body["temperature"] == 0 for body in bodies)
    assert result.decode_tok_s.keys() == result.ttft_ms.keys() == {"1", "4"}
    assert min(*result.decode_tok_s.values(), *result.ttft_ms.values(), result.prefill_tok_s) > 0


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (lambda _: [b'HTTP/1.1 404 Not Found\r\n\r\n{"error": {"message": "no model m"}}'], "no model m"),
        (
            lambda _: [b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"error": {"message": "worker died"}}\n\n'],
            "worker died",
        ),
        (lambda request: events(request, counted=2), "3 tokens were asked for, the server counted 2"),
        (lambda _: [b"HTTP/1.1 200 OK\r\n\r\n"], "the server counted 0"),
    ],
    ids=["refusal", "mid-stream-error", "short-answer", "cut-connection"],
)
def test_an_answer_that_is_not_what_was_asked_for_is_no_measurement(handler: Handler, said: str) -> None:
    async def use(server: Server) -> None:
        with pytest.raises(RuntimeError, match=said):
            await server.complete([1, 2], 3)

    asyncio.run(with_server(handler, use))


def test_a_server_on_another_machine_is_refused() -> None:
    with pytest.raises(ValueError, match="not on this machine"):
        Server.at("http://192.0.2.1:8000", "m")


def test_decode_rate_counts_what_follows_each_first_token() -> None:
    streams = [Stream(0.0, [1.0, 2.0, 3.0], 3), Stream(0.0, [2.0, 3.0, 5.0], 3)]
    assert rates(streams) == (4 / 4.0, 1_500.0)


def test_prompts_are_the_same_for_every_engine_and_share_no_prefix() -> None:
    prompts = SMALL.prompts(32, 128)
    assert prompts == SMALL.prompts(32, 128)
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 32


def test_a_workload_survives_the_command_line() -> None:
    import argparse

    from benches.cpu.workload import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert from_arguments(parser.parse_args(to_arguments(SMALL))) == SMALL
    with pytest.raises(ValueError, match="output_tokens is 1"):
        from_arguments(parser.parse_args(["--output-tokens", "1"]))


def test_the_limit_is_set_by_reads_for_few_rows_and_by_arithmetic_for_many() -> None:
    limits = Limits(read_gb_s=PARAMETERS * 2 / 1e9, bfloat16_gflop_s=PARAMETERS * 2 * 16 / 1e9)
    assert limits.decode_tok_s(1) == pytest.approx(1)
    assert limits.decode_tok_s(16) == pytest.approx(16)
    assert limits.decode_tok_s(64) == pytest.approx(16)
    assert limits.prefill_tok_s() == pytest.approx(16)


def result(engine: str, decode: float, prefill: float, ttft: float) -> Result:
    return Result(engine, "1", "bf16", "http", 1.0, {"1": decode}, {"1": ttft}, prefill, 100.0)


def test_the_best_round_counts_measure_by_measure() -> None:
    best = better(result("a", 10, 100, 5), result("a", 12, 90, 4))
    assert (best.decode_tok_s, best.prefill_tok_s, best.ttft_ms) == ({"1": 12}, 100, {"1": 4})


def test_the_table_tells_how_many_times_as_fast_the_first_engine_is() -> None:
    results = {"ours": result("ours", 30, 300, 5), "peer": result("peer", 20, 100, 5)}
    text = table(results, Workload(concurrency=(1,)), {"decode_1": 60.0, "prefill": 900.0})
    assert "| ours bf16 / peer bf16 |  | 1.50x | 3.00x |" in text
    assert "| limit of this machine | bfloat16 | 60 | 900 |" in text


@pytest.mark.parametrize("out", [["--out", "elsewhere/a.json"], ["--out=elsewhere/a.json"]], ids=str)
def test_the_command_of_a_result_does_not_say_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: list[str]
) -> None:
    from benches.gpu.timing import write_results

    monkeypatch.setattr("sys.argv", ["step.py", "--weights", "fp8", *out, "--layers", "4"])
    write_results(tmp_path / "a.json", "benches.gpu.step", [])
    command = json.loads((tmp_path / "a.json").read_text())["command"]
    assert command == "python -m benches.gpu.step --weights fp8 --layers 4"
