"""The official ``openai`` client against the real server: over a mock, and over an encoder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from frizzen import LLM
from tests.mock_server import MockServer
from tests.pooling.checkpoints import save, sentence_transformer

TEXTS = ["The cat sits outside", "x", "Zürich"]
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@contextmanager
def serving(model: Path, *flags: str) -> Iterator[str]:
    """The address of ``frizzen serve`` over a model, as a process of its own."""
    command = [sys.executable, "-m", "frizzen", "serve", str(model), "--port", "0", "--device", "cpu", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.match(r"Ready at (http://\S+): curl \1(/\S+)", ready)
        assert found, ready
        assert found[2] == "/v1/embeddings"
        yield found[1]
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0
        process.stdout.close()


def post(url: str, body: dict[str, Any]) -> tuple[bytes, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read(), answer.headers


@pytest.fixture(scope="module")
def mock() -> Iterator[MockServer]:
    with MockServer("--served-model-name", "mock", "--embed-size", "6") as running:
        yield running


def test_the_official_clients_default_is_the_float_reply(mock: MockServer) -> None:
    """It asks for base64 by itself, and decodes it as little-endian float32."""
    with openai.OpenAI(base_url=f"{mock.url}/v1", api_key="none", max_retries=0) as client:
        for given in (TEXTS, TEXTS[0], [1, 2, 3], [[1, 2], [3]]):
            default = client.embeddings.create(model="mock", input=given)
            floats = client.embeddings.create(model="mock", input=given, encoding_format="float")
            for one, other in zip(default.data, floats.data, strict=True):
                assert np.array_equal(np.float32(one.embedding), np.float32(other.embedding))
            assert {len(entry.embedding) for entry in default.data} == {6}
            assert default.usage == floats.usage
            assert default.usage.total_tokens == default.usage.prompt_tokens > 0
        with pytest.raises(openai.BadRequestError, match="not trained to have its embeddings cut"):
            client.embeddings.create(model="mock", input="a", dimensions=3)
        with pytest.raises(openai.BadRequestError, match="generates no text; its task is embed"):
            client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("endianness", ["little", "big", "native"])
def test_bytes_are_what_torch_makes_of_the_numbers(mock: MockServer, dtype: str, endianness: str) -> None:
    body = {"input": TEXTS, "encoding_format": "float"}
    floats = json.loads(post(f"{mock.url}/v1/embeddings", body)[0])
    body |= {"encoding_format": "bytes", "embed_dtype": dtype, "endianness": endianness}
    data, headers = post(f"{mock.url}/v1/embeddings", body)
    places = json.loads(headers["metadata"])["data"]
    assert len(places) == len(TEXTS)
    for place, entry in zip(places, floats["data"], strict=True):
        wanted = torch.tensor(entry["embedding"]).to(DTYPES[dtype]).view(torch.uint8)
        found = np.frombuffer(data[place["start"] : place["end"]], dtype=np.uint8).copy()
        if endianness == "big":
            found = found.reshape(-1, DTYPES[dtype].itemsize)[:, ::-1].reshape(-1).copy()
        assert torch.equal(torch.from_numpy(found), wanted)


def test_a_real_encoder_answers_over_http_what_the_library_answers(tmp_path: Path) -> None:
    path = save(tmp_path / "m", "Bert", "Model")
    sentence_transformer(path, "mean_tokens", normalize=True)
    with LLM(str(path), dtype="float32", device="cpu") as llm:
        wanted = [output.outputs.embedding for output in llm.embed(TEXTS)]
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS)]
    with serving(path, "--dtype", "float32") as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model=str(path), input=TEXTS)
            assert [entry.embedding for entry in answer.data] == pytest.approx(np.array(wanted), abs=1e-6)
            assert np.linalg.norm(answer.data[0].embedding) == pytest.approx(1.0, abs=1e-3)
        ranking = json.loads(post(f"{url}/rerank", {"query": TEXTS[0], "documents": TEXTS})[0])["results"]
        assert ranking[0]["index"] == 0
        assert [entry["relevance_score"] for entry in ranking] == pytest.approx(
            sorted(scores, reverse=True), abs=1e-6
        )
