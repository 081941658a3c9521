"""Time to compile the corpus of JSON schemas and to make masks, beside xgrammar on the same vocabulary.

The vocabulary is synthetic, of 128,256 tokens, and is written as a ``tokenizer.json`` that both read. The
corpus is every schema of JSON Schema's test suite and of :mod:`benches.cpu.schemas` that both take. One
thread each; caches are off. xgrammar may stand in an environment of its own, given with ``--peer-python``.

    python -m benches.cpu.grammars --peer-python /path/to/python
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benches.cpu.run import RESULTS, commit, machine
from benches.cpu.schemas import growing
from benches.cpu.workload import note

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "rust" / "grammar" / "tests" / "data" / "draft2020-12.jsonl"
SIZE = 128_256

PEER = """
import json, sys, time
import xgrammar as xgr
tokens, schemas = (json.load(open(path)) for path in sys.argv[1:3])
encoded = [bytes(token) for token in tokens]
size = len(encoded)
info = xgr.TokenizerInfo(encoded, vocab_type=xgr.VocabType.RAW, vocab_size=size, stop_token_ids=[size - 1])
compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
times = []
for schema in schemas:
    start = time.perf_counter()
    try:
        compiler.compile_json_schema(json.dumps(schema))
        times.append((time.perf_counter() - start) * 1e3)
    except Exception:
        times.append(None)
from importlib.metadata import version
print(json.dumps({"version": version("xgrammar"), "times": times}))
"""


def alphabet() -> dict[int, str]:
    """How byte-level tokenizers write the bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + at) for at, byte in enumerate(others)}


def vocabulary() -> list[bytes]:
    """Bytes, words of syllables with and without a blank and a capital, numbers, blanks and punctuation."""
    tokens = dict.fromkeys(bytes([byte]) for byte in range(256))
    marks = [
        '"',
        '":',
        '": ',
        '",',
        '", "',
        '{"',
        '"}',
        "[{",
        "}]",
        "},",
        "[],",
        "{}",
        "()",
        "://",
        "...",
        "\n\n",
    ]
    tokens |= dict.fromkeys(mark.encode() for mark in marks)
    tokens |= dict.fromkeys((blank * count).encode() for blank in (" ", "\t", "\n") for count in range(1, 33))
    tokens |= dict.fromkeys(str(value).encode() for value in range(1000))
    onsets = [*"bcdfghjklmnprstvwz", "st", "tr", "pl", "ch", "br", "gr", "sh"]
    rests = [*"aeiou", "an", "er", "in", "on", "ed", "al", "is", "or"]
    syllables = [onset + rest for onset in onsets for rest in rests]
    words = itertools.chain(syllables, map("".join, itertools.product(syllables, repeat=2)))
    for word in words:
        tokens |= dict.fromkeys(
            form.encode() for form in (word, f" {word}", word.title(), f" {word.title()}")
        )
    return list(tokens)[: SIZE - 1]


def write_tokenizer(tokens: list[bytes], folder: Path) -> None:
    """The vocabulary as a ``tokenizer.json``, with an end-of-text token behind it."""
    letters = alphabet()
    vocab = {"".join(letters[byte] for byte in token): index for index, token in enumerate(tokens)}
    assert len(vocab) == len(tokens)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end = {"id": len(tokens), "content": "<|end|>", "special": True, "single_word": False}
    end |= {"lstrip": False, "rstrip": False, "normalized": False}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    document = {
        "version": "1.0",
        "model": model,
        "added_tokens": [end],
        "pre_tokenizer": level,
        "decoder": level,
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


def spread(times: list[float]) -> dict[str, float]:
    """Median, 99th percentile and sum, in milliseconds."""
    ordered = sorted(times)
    last = ordered[int((len(ordered) - 1) * 0.99)]
    return {"p50_ms": statistics.median(ordered), "p99_ms": last, "total_ms": sum(ordered)}


def main() -> None:
    """Runs both on the same files and writes the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--output", type=Path, default=RESULTS / "grammars.json")
    arguments = parser.parse_args()
    about = machine()
    tokens = vocabulary()
    schemas = [json.loads(line)[2] for line in SUITE.read_text().splitlines()] + growing()
    schemas = [schema for schema in schemas if isinstance(schema, dict)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokenizer(tokens, folder)
        (folder / "schemas.json").write_text(json.dumps(schemas))
        (folder / "tokens.json").write_text(json.dumps([*map(list, tokens), []]))
        (folder / "peer.py").write_text(PEER)
        environment = {**os.environ, "FRIZZEN_BENCH_VOCABULARY": name}
        bench = ["cargo", "bench", "--quiet", "-p", "frizzen-grammar", "--bench", "mask"]
        ours = json.loads(
            subprocess.run(bench, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout
        )
        files = [str(folder / file) for file in ("peer.py", "tokens.json", "schemas.json")]
        peer = json.loads(
            subprocess.run([arguments.peer_python, *files], check=True, stdout=subprocess.PIPE).stdout
        )
    both = [
        (a, b)
        for a, b in zip(ours["compile_ms"], peer["times"], strict=True)
        if a is not None and b is not None
    ]
    document: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": about,
        "vocabulary": len(tokens) + 1,
        "schemas": {"all": len(schemas), "both": len(both)},
        "compile": {
            "frizzen": spread([a for a, _ in both]),
            f"xgrammar {peer['version']}": spread([b for _, b in both]),
        },
        "masks": ours["masks"],
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    note(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
