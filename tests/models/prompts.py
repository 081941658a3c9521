"""The prompts of the models' tests; they need nothing that a GPU machine may lack."""

from __future__ import annotations

import torch

PROMPT_LENGTHS = (1, 17, 90)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 320, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
