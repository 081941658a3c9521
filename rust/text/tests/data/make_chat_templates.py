"""Renders chat templates with transformers and records the results as the golden corpus.

    python rust/text/tests/data/make_chat_templates.py [--templates DIR] [--output FILE]

Without arguments it renders `templates/*.jinja` beside this file into `chat_templates.json`. Those
templates were written for this corpus, each in the manner of a family of models. With `--templates DIR` it
takes another folder; set FRIZZEN_TEST_TEMPLATES to the output when running the Rust test.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime(2024, 7, 26, 9, 5, 3)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city — now & here <b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": 'Città, e.g. "Zürich"'},
                "days": {"type": "integer", "default": 3, "minimum": 0.5},
                "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {"name": "now", "description": "Time", "parameters": {"type": "object", "properties": {}}},
}

USER = {"role": "user", "content": "What is 2+2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}},
        },
        {"id": "call00002", "type": "function", "function": {"name": "now", "arguments": {}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"t": 21.5}'},
    {"role": "tool", "tool_call_id": "call00002", "name": "now", "content": "09:05"},
]
THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nIt is 4."}

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER]},
    "user-no-prompt": {"messages": [USER], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {
        "messages": [
            SYSTEM,
            USER,
            {"role": "assistant", "content": " 4 "},
            {"role": "user", "content": "  And\n3+3?\n"},
        ]
    },
    "unicode": {
        "messages": [{"role": "user", "content": '\u4f60\u597d "\U0001f642" <|x|> it\'s\ta\\b & <c>'}]
    },
    "tools": {"messages": [SYSTEM, {"role": "user", "content": "Weather?"}], "tools": [WEATHER, TIME]},
    "tool-results": {
        "messages": [{"role": "user", "content": "Weather?"}, CALL, *RESULTS],
        "tools": [WEATHER, TIME],
    },
    "reasoning": {"messages": [USER, THOUGHT, {"role": "user", "content": "Sure?"}]},
    "reasoning-field": {
        "messages": [
            USER,
            {"role": "assistant", "content": "4", "reasoning": "Two and two."},
            {"role": "user", "content": "Sure?"},
        ]
    },
    "no-thinking": {"messages": [USER], "kwargs": {"enable_thinking": False, "thinking": False}},
    "continue": {
        "messages": [USER, {"role": "assistant", "content": "The answer is"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "continue-spaces": {
        "messages": [USER, {"role": "assistant", "content": "  The answer is:  "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "assistant-first": {"messages": [{"role": "assistant", "content": "Hi!"}, USER]},
    "empty": {
        "messages": [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "B"},
        ]
    },
    "documents": {
        "messages": [USER],
        "documents": [{"title": "T", "text": "Some text."}, {"title": "U", "text": "More."}],
    },
}


class FixedDatetime(datetime):
    """A clock that stands still, for `strftime_now`."""

    @classmethod
    def now(cls, tz: Any = None) -> "FixedDatetime":
        """The same moment always."""
        return cls(NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute, NOW.second)


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer without a vocabulary: only its template is used."""
    empty = Tokenizer(models.BPE())
    return PreTrainedTokenizerFast(tokenizer_object=empty, chat_template=template, **SPECIAL)


def as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its text as a list of one part."""
    text = message.get("content")
    return message | ({"content": [{"type": "text", "text": text}]} if text is not None else {})


def render(name: str, template: str, conversation: dict[str, Any]) -> dict[str, Any]:
    """The conversation with what transformers makes of it: `expected`, or `error` if it refuses."""
    case = {"add_generation_prompt": not conversation.get("continue_final_message", False), **conversation}
    arguments = {key: value for key, value in case.items() if key not in ("messages", "kwargs")}
    # A template that reads only parts is given parts here; the Rust side finds that out by itself.
    messages = [as_parts(m) if name == "parts-only" else dict(m) for m in case["messages"]]
    try:
        text = tokenizer_with(template).apply_chat_template(
            messages, tokenize=False, **arguments, **case.get("kwargs", {})
        )
    except Exception as error:  # noqa: BLE001 - any refusal is the recorded behaviour
        return case | {"error": str(error).splitlines()[0][:120] if str(error) else type(error).__name__}
    return case | {"expected": text}


def main() -> None:
    """Renders every template with every conversation."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=Path, default=here / "templates")
    parser.add_argument("--output", type=Path, default=here / "chat_templates.json")
    options = parser.parse_args()

    chat_template_utils.datetime = FixedDatetime
    templates = {path.stem: path.read_text() for path in sorted(options.templates.glob("*.jinja"))}
    corpus = {
        "local_time": int((NOW - datetime(1970, 1, 1)).total_seconds()),
        "special_tokens": SPECIAL,
        "templates": templates,
        "cases": [
            {"name": f"{template}/{name}", "template": template, **render(template, source, conversation)}
            for template, source in templates.items()
            for name, conversation in CONVERSATIONS.items()
        ],
    }
    options.output.write_text(json.dumps(corpus, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
