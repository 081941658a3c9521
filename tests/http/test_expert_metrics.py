"""A real server with a mixture of experts: what its router did is in the metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.conftest import CheckpointMaker


@pytest.fixture
def url(tiny_checkpoint: CheckpointMaker) -> Iterator[str]:
    """Of a server with a tiny Qwen3-MoE, started with a self-test."""
    options = ["--dtype", "float32", "--device", "cpu", "--kv-cache-memory", "4M", "--self-test"]
    command = [sys.executable, "-m", "frizzen", "serve", str(tiny_checkpoint("qwen3_moe")), "--port", "0"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = re.match(r"Ready at (\S+): ", process.stdout.readline())
        assert ready is not None
        yield ready[1]
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def series(text: str, name: str) -> dict[tuple[int, int], float]:
    """Layer and expert (-1 where there is none) -> value."""
    found = {}
    for labels, value in re.findall(rf"^frizzen:{name}{{(.*?)}} (\S+)$", text, re.M):
        numbers = dict(re.findall(r'(layer|expert)="(\d+)"', labels))
        found[int(numbers["layer"]), int(numbers.get("expert", -1))] = float(value)
    return found


def test_tokens_by_expert_and_balance_are_exported(url: str) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        usage = json.load(answer)["usage"]
    text = get(f"{url}/metrics")
    assert re.search(r'^frizzen:kernel_info\{op="moe\.experts",.*impl="\w+"\} 1$', text, re.M)
    assert re.search(r'^frizzen:start_seconds\{.*engine="0",phase="load"\} [\d.e-]+$', text, re.M)
    tokens, balance = series(text, "expert_tokens_total"), series(text, "expert_balance")
    layers = sorted({layer for layer, _ in tokens})
    assert layers == sorted(layer for layer, _ in balance)
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    for layer in layers:
        counts = [count for (other, _), count in tokens.items() if other == layer]
        assert sum(counts) >= computed
        assert balance[layer, -1] == pytest.approx(sum(counts) / len(counts) / max(counts))
    plan = json.loads(get(f"{url}/v1/plan"))
    assert {"experts", "router"} <= set(plan["memory"]["owners"][0]["parts"])
    assert "self_test" in {decision["name"] for decision in plan["decisions"]}
    assert 'op="moe.experts",layer_range="' in text
