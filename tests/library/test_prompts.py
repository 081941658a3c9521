"""What LLM.generate takes as a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from frizzen import RequestError
from frizzen.prompts import normalise


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ((1, 2), [[1, 2]]),
        (["a", [4, 5]], ["a", [4, 5]]),
        ({"prompt": "a"}, ["a"]),
        ([{"prompt": "a"}, {"prompt_token_ids": [1]}], ["a", [1]]),
        (np.array([1, 2], dtype=np.int32), [[1, 2]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.array([7, 8]), "b"], [[7, 8], "b"]),
        ({"prompt_token_ids": np.array([7])}, [[7]]),
        ([], []),
        ([[]], [[]]),
    ],
)
def test_every_form_of_a_prompt_is_understood(prompts: Any, expected: list[str | list[int]]) -> None:
    assert normalise(prompts) == expected


def test_torch_tensors_are_prompts() -> None:
    torch = pytest.importorskip("torch")
    assert normalise(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (7, "prompts must be text, token ids or a list of these, got int"),
        ([1.5, 2], "prompt: token 0 must be a token id, got 1.5"),
        ([[1, -4]], "prompt 0: token 1 must be a token id, got -4"),
        (["a", [2**31]], "prompt 1: token 0 must be a token id, got 2147483648"),
        ([[True]], "prompt 0: token 0 must be a token id, got True"),
        (["a", None], "prompt 1 must be text or token ids, got NoneType"),
        ([["a", "b"]], "prompt 0: token 0 must be a token id, got 'a'"),
        ({"text": "a"}, r"prompt must have the key prompt or the key prompt_token_ids, got \['text'\]"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompt must have the key"),
        ({"prompt": [1]}, "prompt: prompt must not be of type list"),
        ({"prompt_token_ids": "a"}, "prompt: prompt_token_ids must not be of type str"),
        (b"ab", "prompts must be text, token ids or a list of these, got bytes"),
        (["a", b"ab"], "prompt 1 must be text or token ids, got bytes"),
        (["a", "b\ud800"], r"prompt 1 must be Unicode text, got the lone surrogate '\\ud800' at 1"),
        (np.array([0.5]), "prompt: token 0 must be a token id, got 0.5"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_place(prompts: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        normalise(prompts)
