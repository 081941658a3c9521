"""What may be given to ``LLM.generate`` as a prompt, brought into one form: text or a list of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from operator import index
from typing import Protocol, TypedDict, runtime_checkable

from frizzen.errors import RequestError

__all__ = ["Prompt", "TextPrompt", "TokenArray", "TokensPrompt", "normalise"]


class TextPrompt(TypedDict):
    """A prompt as text, to be tokenised."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


@runtime_checkable
class TokenArray(Protocol):
    """An integer array of numpy, torch or another package: 1-D is a prompt, 2-D a batch."""

    def tolist(self) -> list[int] | list[list[int]]:
        """The elements as Python integers."""


_BYTES = (bytes, bytearray)
"""Sequences of integers that are no token ids: text that was not decoded."""

Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | TokenArray


def normalise(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    """One prompt or a batch of them as a list; ``RequestError`` names the prompt that is none."""
    batch: object = prompts.tolist() if isinstance(prompts, TokenArray) else prompts
    if isinstance(batch, str | Mapping):
        return [_one(batch, "prompt")]
    if not isinstance(batch, Sequence) or isinstance(batch, _BYTES):
        raise RequestError(f"prompts must be text, token ids or a list of these, got {type(batch).__name__}")
    # A list of numbers is one prompt in tokens.
    if batch and isinstance(batch[0], Real):
        return [_one(batch, "prompt")]
    return [_one(prompt, f"prompt {number}") for number, prompt in enumerate(batch)]


def _one(prompt: object, name: str) -> str | list[int]:
    if isinstance(prompt, Mapping):
        if set(prompt) not in ({"prompt"}, {"prompt_token_ids"}):
            raise RequestError(
                f"{name} must have the key prompt or the key prompt_token_ids, got {sorted(map(str, prompt))}"
            )
        ((key, value),) = prompt.items()
        if isinstance(value, str) != (key == "prompt"):
            raise RequestError(f"{name}: {key} must not be of type {type(value).__name__}")
        return _one(value, name)
    if isinstance(prompt, str):
        return _text(prompt, name)
    tokens: object = prompt.tolist() if isinstance(prompt, TokenArray) else prompt
    if not isinstance(tokens, Sequence) or isinstance(tokens, _BYTES):
        raise RequestError(f"{name} must be text or token ids, got {type(tokens).__name__}")
    return [_token(token, f"{name}: token {place}") for place, token in enumerate(tokens)]


def _text(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = text[error.start]
        raise RequestError(
            f"{name} must be Unicode text, got the lone surrogate {found!r} at {error.start}"
        ) from error
    return text


def _token(token: object, name: str) -> int:
    """An id that the engine's 32-bit ids can express; whether the model has it is the engine's to say."""
    try:
        value = -1 if isinstance(token, bool) else index(token)  # type: ignore[arg-type]
    except TypeError:
        value = -1
    if not 0 <= value < 2**31:
        raise RequestError(f"{name} must be a token id, got {token!r}")
    return value
