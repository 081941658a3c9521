"""Load client for an OpenAI-compatible ``/v1/completions`` on this machine, with token-id prompts.

    python -m benches.cpu.http_load --url http://127.0.0.1:8000 --model smollm2-135m

It shares the machine with the server, so its work per event is kept to one ``json.loads``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

from benches.cpu.workload import Result, Workload, add_arguments, from_arguments, note, report

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_LINE = 1 << 20  # bytes of one event


@dataclass(slots=True)
class Stream:
    """Times of one answer, in seconds of the monotonic clock, and the number of tokens the server counted."""

    sent: float
    text_at: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send; ``extra`` is merged into every request body for servers with fields of their own."""

    host: str
    port: int
    model: str
    extra: dict[str, Any]

    @classmethod
    def at(cls, url: str, model: str, extra: dict[str, Any] | None = None) -> Server:
        """Parses ``url``. Raises ``ValueError`` unless it is on this machine."""
        parts = urllib.parse.urlsplit(url)
        if parts.hostname not in LOOPBACK:
            raise ValueError(f"{url!r} is not on this machine")
        return cls(parts.hostname, parts.port or 80, model, extra or {})

    async def complete(self, prompt: list[int], output_tokens: int) -> Stream:
        """Streams one completion. Raises ``RuntimeError`` on a refusal, an error event or a short answer."""
        fields = {"model": self.model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
        fields |= {
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        body = json.dumps(fields).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=MAX_LINE)
        try:
            stream = Stream(time.perf_counter())
            writer.write(head.encode() + body)
            await writer.drain()
            status = await reader.readline()
            if status.split()[1:2] != [b"200"]:
                said = (await reader.read(2_000)).decode(errors="replace")
                raise RuntimeError(f"{status.decode(errors='replace').strip()}: {said}")
            # The sizes of HTTP chunks are passed over like any line that is not data; no event is split.
            async for line in reader:
                if line.startswith(b"data:"):
                    take_event(stream, line[5:].strip())
        finally:
            writer.close()
        if stream.tokens != output_tokens or not stream.text_at:
            raise RuntimeError(f"{output_tokens} tokens were asked for, the server counted {stream.tokens}")
        return stream


def take_event(stream: Stream, data: bytes) -> None:
    """Accounts for one event. Raises ``RuntimeError`` if it carries an error."""
    if data == b"[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise RuntimeError(f"the server failed in mid-stream: {event['error']}")
    if event.get("choices"):
        stream.text_at.append(time.perf_counter())
    if event.get("usage"):
        stream.tokens = event["usage"]["completion_tokens"]


def rates(streams: list[Stream]) -> tuple[float, float]:
    """(decode rate of all streams [tok/s], mean time to first token [ms])."""
    first = min(stream.text_at[0] for stream in streams)
    last = max(stream.text_at[-1] for stream in streams)
    tokens = sum(stream.tokens - 1 for stream in streams)
    ttft = statistics.fmean(stream.text_at[0] - stream.sent for stream in streams)
    return tokens / (last - first), 1e3 * ttft


async def measure(server: Server, workload: Workload, result: Result) -> None:
    """Runs the whole workload against ``server`` and fills ``result``."""
    await server.complete(workload.prompts(1, workload.prompt_tokens)[0], min(16, workload.output_tokens))
    for count in workload.concurrency:
        prompts = workload.prompts(count, workload.prompt_tokens)
        streams = await asyncio.gather(
            *(server.complete(prompt, workload.output_tokens) for prompt in prompts)
        )
        decode, ttft = rates(streams)
        result.decode_tok_s[str(count)], result.ttft_ms[str(count)] = round(decode, 1), round(ttft, 1)
        note(f"  {result.engine}: {count} streams {decode:.1f} tok/s, first token after {ttft:.0f} ms")
    times = []
    for prompt in workload.prompts(workload.prefill_repeats, workload.prefill_tokens):
        stream = await server.complete(prompt, 1)
        times.append(stream.text_at[0] - stream.sent)
    result.prefill_tok_s = round(workload.prefill_tokens / min(times), 1)
    note(f"  {result.engine}: prefill {result.prefill_tok_s} tok/s")


def main() -> None:
    """Loads a running server and prints its result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", default="server", help="name in the result")
    parser.add_argument("--weights", default="?", help="kind of weights, for the result")
    parser.add_argument("--extra", type=json.loads, default={}, help="JSON object merged into every request")
    add_arguments(parser)
    arguments = parser.parse_args()
    result = Result(arguments.engine, "", arguments.weights, "http")
    server = Server.at(arguments.url, arguments.model, arguments.extra)
    asyncio.run(measure(server, from_arguments(arguments), result))
    report(result)


if __name__ == "__main__":
    main()
