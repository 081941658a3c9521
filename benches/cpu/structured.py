"""Fifty schemas of growing difficulty on SmolLM2, streamed, with n-gram drafts and without: all are valid.

Greedy and in float32, so that the text with drafts is the text without; each schema stands in its own prompt,
where the drafter finds parts of the answer. Validated with the ``jsonschema`` package.

    python -m benches.cpu.structured
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
from jsonschema import Draft202012Validator

from benches.cpu.ours import free_port, served
from benches.cpu.run import RESULTS, commit, machine
from benches.cpu.schemas import growing
from benches.cpu.workload import note

DRAFTS = 4
MODES: tuple[Any, ...] = ({"max_tokens": DRAFTS}, "off")


def ask(client: openai.OpenAI, schema: dict[str, Any], tokens: int, speculation: Any) -> dict[str, Any]:
    """One streamed answer: its text, why it ended, and what the server says of grammar and drafts."""
    question = f"Write one JSON value that satisfies this schema: {json.dumps(schema)}"
    wrapper = {"name": "answer", "schema": schema}
    request: dict[str, Any] = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": question}],
        "response_format": {"type": "json_schema", "json_schema": wrapper},
        "temperature": 0,
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": {"speculation": speculation},
    }
    stream = client.chat.completions.create(**request)
    answer: dict[str, Any] = {
        "text": "",
        "reason": None,
        "enforced": True,
        "accepted": 0,
        "drafts": 0,
        "tokens": 0,
    }
    for chunk in stream:
        answer["enforced"] &= bool(getattr(chunk, "grammar_enforced", False))
        for choice in chunk.choices:
            answer["text"] += choice.delta.content or ""
            answer["reason"] = choice.finish_reason or answer["reason"]
        if chunk.usage:
            answer["tokens"] = chunk.usage.completion_tokens
            drafted = getattr(chunk.usage, "speculation", None) or {}
            answer |= {name: drafted.get(name, 0) for name in ("accepted", "drafts")}
    return answer


def is_valid(schema: dict[str, Any], answer: dict[str, Any]) -> bool:
    """True if the text is JSON that the schema allows, and it ended by itself."""
    try:
        value = json.loads(answer["text"])
    except json.JSONDecodeError:
        return False
    valid: bool = Draft202012Validator(schema).is_valid(value)
    return valid and answer["reason"] == "stop" and answer["enforced"]


def main() -> int:
    """Runs all schemas both ways; 0 if every answer is valid and the two ways agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8, help="answers at the same time")
    parser.add_argument("--first", type=int, default=50, help="only so many schemas, the easy ones")
    parser.add_argument("--output", type=Path, default=RESULTS / "structured_smollm2.json")
    arguments = parser.parse_args()
    about = machine()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ["--port", str(port), "--dtype", "float32", "--drafter", "ngram", "--speculation", str(DRAFTS)]
    command = [sys.executable, "-m", "frizzen", "serve", "smollm2-135m", *flags]
    rows = []
    with served(command, url, arguments.threads):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
        schemas = growing()[: arguments.first]
        with ThreadPoolExecutor(arguments.streams) as pool:
            asked = [
                [pool.submit(ask, client, schema, arguments.tokens, drafts) for drafts in MODES]
                for schema in schemas
            ]
        for index, (schema, answers) in enumerate(zip(schemas, asked, strict=True)):
            drafted, plain = (answer.result() for answer in answers)
            row = {
                "schema": index,
                "valid": is_valid(schema, drafted),
                "valid_plain": is_valid(schema, plain),
            }
            row |= {"same": drafted["text"] == plain["text"]}
            row |= {name: drafted[name] for name in ("reason", "tokens", "drafts", "accepted")}
            note(f"{row} {drafted['text'][:60]!r}")
            rows.append(row)
    totals = {
        name: sum(int(row[name]) for row in rows)
        for name in ("valid", "valid_plain", "same", "tokens", "drafts", "accepted")
    }
    document: dict[str, Any] = {
        "date": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": about,
        "schemas": len(rows),
        **totals,
        "rows": rows,
    }
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    note(f"{totals} of {len(rows)}; written to {arguments.output}")
    return 0 if all(row["valid"] and row["valid_plain"] and row["same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
