"""DeepGEMM (``sgl-deep-gemm``): the only file that knows the package, its names and its layouts.

A name that is there may still not work: builds for another torch import and fail in every call. So each
function is tried on a tiny problem when a kernel is built, under its canonical name first and the names that
it had in other versions after. ``kernel_packages.toml`` says which build fits which torch; it is read for the
advice in a reason only.

A scale of an activation stands by column and a column starts on 16 bytes, as the copy engine wants it; those
of weights stay as they are in checkpoints. What is made of the functions is in ``deep_gemm_kernels``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frizzen.errors import PlanError
from frizzen.kernels.plan import Reason
from frizzen.quantize.fp8 import GROUP, Fp8Weight, quantize, quantize_inputs

__all__ = [
    "ALIGNMENT",
    "SPELLINGS",
    "Binding",
    "UnusableError",
    "activation_arguments",
    "advice",
    "probe",
]

TABLE = Path(__file__).resolve().parent.parent / "kernel_packages.toml"
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "fp8_gemm_nt": ("fp8_gemm_nt", "fp8_fp4_gemm_nt"),
    "m_grouped_fp8_gemm_nt_contiguous": (
        "m_grouped_fp8_gemm_nt_contiguous",
        "m_grouped_fp8_fp4_gemm_nt_contiguous",
    ),
    "m_grouped_fp8_gemm_nt_masked": (
        "m_grouped_fp8_gemm_nt_masked",
        "fp8_m_grouped_gemm_nt_masked",
        "m_grouped_fp8_fp4_gemm_nt_masked",
    ),
    "m_grouped_bf16_gemm_nt_contiguous": ("m_grouped_bf16_gemm_nt_contiguous",),
    "m_grouped_bf16_gemm_nt_masked": ("m_grouped_bf16_gemm_nt_masked", "bf16_m_grouped_gemm_nt_masked"),
}
"""The names of every function, the canonical one first."""
ALIGNMENT = 128
"""Places that an expert's part is a multiple of."""


class UnusableError(Exception):
    """A function of the package cannot be used; ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Binding:
    """The package's functions, found by running them."""

    module: Any
    device: str

    @classmethod
    def load(cls, device: str, importer: Callable[[str], Any] = importlib.import_module) -> Binding:
        """Imports the package.

        Raises:
            UnusableError: it is not installed, or its import fails.
        """
        try:
            return cls(importer("deep_gemm"), device)
        except ModuleNotFoundError as error:
            if error.name == "deep_gemm":
                reason = Reason("missing_package", "sgl-deep-gemm is not installed", advice())
            else:
                reason = Reason("import_error", f"deep_gemm needs {error.name}, which is not there", advice())
            raise UnusableError(reason) from error
        # A library for another torch fails in the dynamic linker, or in whatever runs when it is loaded.
        except Exception as error:
            reason = Reason("import_error", f"deep_gemm: {_first_line(error)}", advice())
            raise UnusableError(reason) from error

    def function(self, name: str) -> Callable[..., Any]:
        """The function with this canonical name, after a tiny problem.

        Raises:
            UnusableError: it has none of its names, or fails, or is wrong.
        """
        spellings = SPELLINGS[name]
        found = next((got for entry in spellings if (got := getattr(self.module, entry, None))), None)
        if found is None:
            wanted = " or ".join(spellings)
            raise UnusableError(Reason("missing_symbol", f"{self._version()} has no {wanted}", advice()))
        function: Callable[..., Any] = found
        try:
            error = _TRIALS[name](function, self.device)
        except Exception as failure:
            message = f"{name} of {self._version()} fails: {_first_line(failure)}"
            raise UnusableError(Reason("run_error", message, advice())) from failure
        if not error <= _TRIAL_ERROR:
            message = f"{name} of {self._version()} is off by {error:.2g}, at most {_TRIAL_ERROR} is allowed"
            raise UnusableError(Reason("wrong_result", message, advice()))
        return function

    def _version(self) -> str:
        return f"deep_gemm {getattr(self.module, '__version__', 'of unknown version')}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def advice(torch_version: str = torch.__version__, table: Path = TABLE) -> str | None:
    """What to install for a torch; None if the data file knows no build for it."""
    package = tomllib.loads(table.read_text(encoding="utf-8"))["deep_gemm"]
    for build in package["builds"]:
        if _fits(torch_version, build["torch"]):
            return f"pip install {package['package']}=={build['version']}"
    return None


def _fits(version: str, wanted: str) -> bool:
    """Whether a version meets ``==2.11.*``, ``==2.13.0`` or ``>=2.13``."""
    numbers = _numbers(version.split("+", maxsplit=1)[0])
    if wanted.startswith(">="):
        return numbers >= _numbers(wanted[2:])
    bound = _numbers(wanted.removeprefix("==").removesuffix(".*"))
    return numbers[: len(bound)] == bound


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def activation_arguments(function: Callable[..., Any], **wanted: float | None) -> dict[str, float]:
    """Keyword arguments by which a function of the package applies an activation of ours.

    ``wanted``: ``clamp``, ``alpha``, ``beta``; None, or what a plain SwiGLU has, is not passed on.

    Raises:
        PlanError: the function cannot express a parameter. Leaving it out would compute something else.
    """
    accepted = inspect.signature(function).parameters
    found: dict[str, float] = {}
    for name, value in wanted.items():
        if value is None or value == _PLAIN_ACTIVATION[name]:
            continue
        if (spelled := f"activation_{name}") not in accepted:
            called = getattr(function, "__name__", repr(function))
            raise PlanError(
                f"{called} has no {spelled}, so it cannot apply an activation with {name} {value}"
            )
        found[spelled] = value
    return found


_PLAIN_ACTIVATION = {"clamp": 0.0, "alpha": 1.0, "beta": 0.0}

_TRIAL_ERROR = 1e-2
"""Largest error that a tiny problem may have; its results are of the order of 1, rounded to bfloat16."""


def _draw(*shape: int, device: str) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return (drawn / math.sqrt(math.sqrt(shape[-1]))).to(device)


def _by_column(scale: Tensor) -> Tensor:
    """``[M, G]`` or ``[E, M, G]`` -> the same values with the strides that the copy engine wants."""
    *outer, rows, groups = scale.shape
    padded = scale.new_zeros(*outer, groups, -(-rows // 4) * 4)
    padded[..., :rows] = scale.transpose(-1, -2)
    view: Tensor = padded.transpose(-1, -2)[..., :rows, :]
    return view


def _fp8_pair(a: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, Tensor]:
    """Both operands in FP8, and what their numbers stand for."""
    numbers, scale = quantize_inputs(a)
    weight = quantize(b, GROUP, GROUP)
    expanded = Fp8Weight(numbers, scale, 1, GROUP).expand(torch.float32)
    return (
        (numbers, _by_column(scale)),
        (weight.data, weight.scale),
        expanded,
        weight.expand(torch.float32),
    )


def _error(found: Tensor, wanted: Tensor) -> float:
    return float(torch.nan_to_num((found.float() - wanted).abs() / (1 + wanted.abs()), nan=torch.inf).max())


def _try_linear(function: Callable[..., Any], device: str) -> float:
    a, b, x, w = _fp8_pair(_draw(70, 256, device=device), _draw(384, 256, device=device))
    out = torch.empty(70, 384, dtype=torch.bfloat16, device=device)
    function(a, b, out)
    return _error(out, x @ w.T)


def _try_contiguous(function: Callable[..., Any], device: str, *, fp8: bool) -> float:
    x, w = _draw(2 * ALIGNMENT, 256, device=device), _draw(3, 384, 256, device=device)
    ids = torch.tensor([2, 0], dtype=torch.int32, device=device).repeat_interleave(ALIGNMENT)
    a, b = x.bfloat16(), w.bfloat16()
    operands: tuple[Any, Any] = a, b
    if fp8:
        left, right, a, b = _fp8_pair(x, w)
        operands = left, right
    out = torch.empty(len(x), 384, dtype=torch.bfloat16, device=device)
    function(*operands, out, ids)
    wanted = torch.bmm(a.float().view(2, ALIGNMENT, -1), b.float()[[2, 0]].mT)
    return _error(out, wanted.flatten(0, 1))


def _try_masked(function: Callable[..., Any], device: str, *, fp8: bool) -> float:
    x, w = _draw(2, 64, 256, device=device), _draw(2, 384, 256, device=device)
    counts = torch.tensor([5, 33], dtype=torch.int32, device=device)
    a, b = x.bfloat16(), w.bfloat16()
    operands: tuple[Any, Any] = a, b
    if fp8:
        left, right, a, b = _fp8_pair(x, w)
        operands = left, right
    out = torch.empty(2, 64, 384, dtype=torch.bfloat16, device=device)
    function(*operands, out, counts, 16)
    wanted = torch.bmm(a.float(), b.float().mT)
    return max(_error(out[0, :5], wanted[0, :5]), _error(out[1, :33], wanted[1, :33]))


_TRIALS: Mapping[str, Callable[[Callable[..., Any], str], float]] = {
    "fp8_gemm_nt": _try_linear,
    "m_grouped_fp8_gemm_nt_contiguous": functools.partial(_try_contiguous, fp8=True),
    "m_grouped_fp8_gemm_nt_masked": functools.partial(_try_masked, fp8=True),
    "m_grouped_bf16_gemm_nt_contiguous": functools.partial(_try_contiguous, fp8=False),
    "m_grouped_bf16_gemm_nt_masked": functools.partial(_try_masked, fp8=False),
}


@functools.cache
def probe(name: str, device: str) -> Callable[..., Any] | Reason:
    """Once per process and function, failures included: a trial compiles for seconds."""
    try:
        return Binding.load(device).function(name)
    except UnusableError as error:
        return error.reason
