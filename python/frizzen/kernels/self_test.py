"""``--self-test``: every kernel is compared with the reference first, on the model's shapes."""

from __future__ import annotations

from typing import Any

import torch

from frizzen.kernels.facts import Facts
from frizzen.kernels.plan import Candidate, Op, Reason
from frizzen.kernels.problems import disagreement

__all__ = ["SelfTest"]

CODE = "self_test_failed"


class SelfTest:
    """A plan builder's ``check``: a kernel that raises, is not finite or disagrees gets a reason."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        """``op by candidate``, a line per kernel that agrees; a kernel serves all layers of equal shape."""
        self.untested: list[str] = []
        """Kernels whose problem did not fit the memory: nothing is known against them."""

    def __call__(self, op: Op[Any], candidate: Candidate, facts: Facts, kernel: Any) -> Reason | None:
        """None if the kernel may serve."""
        name = f"{op.name} by {candidate.name}"
        try:
            found = disagreement(op, candidate, facts, kernel, brief=True)
        except (torch.OutOfMemoryError, MemoryError):
            self.untested.append(name)
            return None
        # A kernel that raises here would have raised in a request.
        except Exception as error:  # noqa: BLE001
            return Reason.of(CODE, error)
        if found is not None:
            return Reason(CODE, found.message)
        self.passed.append(name)
        return None

    def summary(self) -> str:
        """One phrase for the plan."""
        text = f"{len(self.passed)} kernels agree with the reference on this model's shapes"
        if self.untested:
            text += f"; not enough memory to test {', '.join(dict.fromkeys(self.untested))}"
        return text
