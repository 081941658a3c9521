"""DeepGEMM (``sgl-deep-gemm``): the only file that knows the package, its names and its layouts.

A name that is there may still not work: builds for another torch import and fail in every call. So each
function is tried on a tiny problem when a kernel is built, under its canonical name first and the names that
it had in other versions after. ``kernel_packages.toml`` says which build fits which torch; it is read for the
advice in a reason only.

A scale of an activation stands by column and a column starts on 16 bytes, as the copy engine wants it; those
of weights stay as they are in checkpoints.
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
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from frizzen.errors import PlanError
from frizzen.kernels.facts import Facts
from frizzen.kernels.fp8_ops import LINEAR_FP8, MOE_EXPERTS_FP8
from frizzen.kernels.moe_ops import MOE_EXPERTS, Experts
from frizzen.kernels.moe_reference import Activation
from frizzen.kernels.plan import Candidate, Reason
from frizzen.quantize.fp8 import GROUP, Fp8Weight, quantize, quantize_inputs

if TYPE_CHECKING:
    from frizzen.kernels.triton.places import Places, Rows, Sorted

__all__ = ["CANDIDATES", "SPELLINGS", "Binding", "activation_arguments", "advice"]

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
_ALIGNMENT = 128
"""Places that an expert's part is a multiple of."""
_FEW = 256
"""Most tokens whose experts have a part of one capacity each."""


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
    x, w = _draw(2 * _ALIGNMENT, 256, device=device), _draw(3, 384, 256, device=device)
    ids = torch.tensor([2, 0], dtype=torch.int32, device=device).repeat_interleave(_ALIGNMENT)
    a, b = x.bfloat16(), w.bfloat16()
    operands: tuple[Any, Any] = a, b
    if fp8:
        left, right, a, b = _fp8_pair(x, w)
        operands = left, right
    out = torch.empty(len(x), 384, dtype=torch.bfloat16, device=device)
    function(*operands, out, ids)
    wanted = torch.bmm(a.float().view(2, _ALIGNMENT, -1), b.float()[[2, 0]].mT)
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
def _probe(name: str, device: str) -> Callable[..., Any] | Reason:
    """Once per process and function, failures included: a trial compiles for seconds."""
    try:
        return Binding.load(device).function(name)
    except UnusableError as error:
        return error.reason


def _requires(facts: Facts, *names: str) -> Reason | None:
    if facts.device != "cuda":
        return Reason("device", f"deep_gemm computes on cuda, this is {facts.device}")
    if "sm_90" not in facts.capability:
        return Reason(
            "capability", f"the layouts here are those of sm_90, this is {', '.join(facts.capability)}"
        )
    if facts.dtype != torch.bfloat16:
        return Reason("dtype", f"the dtype is {facts.dtype}, wanted bfloat16")
    for name in names:
        if isinstance(found := _probe(name, facts.device), Reason):
            return found
    return None


def _requires_linear(facts: Facts) -> Reason | None:
    size_in, size_out = facts.size("in_features"), facts.size("out_features")
    if size_in % GROUP or size_out % 64:
        return Reason("shape", f"the weight is {size_out} by {size_in}, wanted multiples of 64 and {GROUP}")
    return _requires_blocks(facts) or _requires(facts, "fp8_gemm_nt")


def _requires_blocks(facts: Facts) -> Reason | None:
    block = facts.size("block_rows"), facts.size("block_columns")
    if block != (GROUP, GROUP):
        return Reason(
            "blocks", f"scales are for blocks of {block[0]} by {block[1]}, wanted {GROUP} by {GROUP}"
        )
    return None


def _requires_experts(facts: Facts) -> Reason | None:
    for name in ("hidden", "intermediate"):
        if facts.size(name) % GROUP:
            return Reason("shape", f"{name} is {facts.size(name)}, wanted a multiple of {GROUP}")
    if facts["bias"]:
        return Reason("bias", "the experts have biases, the grouped products take none")
    return None


def _requires_fp8_experts(facts: Facts) -> Reason | None:
    names = ("m_grouped_fp8_gemm_nt_contiguous", "m_grouped_fp8_gemm_nt_masked")
    return _requires_experts(facts) or _requires_blocks(facts) or _requires(facts, *names)


def _requires_bf16_experts(facts: Facts) -> Reason | None:
    names = ("m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked")
    return _requires_experts(facts) or _requires(facts, *names)


def _found(name: str, facts: Facts) -> Callable[..., Any]:
    found = _probe(name, facts.device)
    if isinstance(found, Reason):
        raise UnusableError(found)
    return found


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """See ``linear.fp8``."""

    product: Callable[..., Any]
    round_rows: Callable[[Tensor], tuple[Tensor, Tensor]]
    few: Any
    """The kernel for few tokens, whose product waits for the weight: Triton's."""
    few_tokens: int

    @classmethod
    def build(cls, facts: Facts) -> Fp8Linear:
        """The kernel for one shape."""
        from frizzen.kernels.triton import fp8, fp8_linear

        few = fp8_linear.Fp8Linear.build(facts)
        rows = functools.partial(fp8.quantize_rows, target=few.target, by_column=True)
        return cls(_found("fp8_gemm_nt", facts), rows, few, fp8_linear.FEW)

    def prepare(self, weight: Fp8Weight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Keeps the weight as it is."""
        few = self.few.prepare(weight, bias)

        def linear(x: Tensor) -> Tensor:
            if len(x) <= self.few_tokens:
                out: Tensor = few(x)
                return out
            out = torch.empty(len(x), weight.data.shape[0], dtype=x.dtype, device=x.device)
            self.product(self.round_rows(x), (weight.data, weight.scale), out)
            return out if bias is None else out.add_(bias)

        return linear


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """``moe.experts`` by two grouped products: masked for few tokens, contiguous for many."""

    places: Places
    contiguous: Callable[..., Any]
    masked: Callable[..., Any]
    rounded: bool
    """Whether in FP8."""

    @classmethod
    def build(cls, facts: Facts, *, rounded: bool) -> GroupedExperts:
        """The kernels for one shape; ``rounded``: in FP8."""
        from frizzen.kernels.triton.launch import Target
        from frizzen.kernels.triton.places import Places

        hidden, inner, experts, top_k = (
            facts.size(name) for name in ("hidden", "intermediate", "experts", "top_k")
        )
        places = Places(hidden, inner, experts, top_k, Activation.of(facts), Target.of(facts))
        name = f"m_grouped_{'fp8' if rounded else 'bf16'}_gemm_nt_"
        return cls(places, _found(f"{name}contiguous", facts), _found(f"{name}masked", facts), rounded)

    def run(self, x: Tensor, weights: Tensor, ids: Tensor, w13: Any, w2: Any) -> Tensor:
        """Both weights are tensors, or pairs of numbers and scales."""
        places, tokens = self.places, len(x)
        if tokens == 0:
            return torch.empty_like(x)
        if tokens > _FEW:
            found = places.in_tiles(ids, _ALIGNMENT)
        else:
            # A product writes whole tiles: past an expert's last row, but not into the next expert's part.
            found = places.by_capacity(ids, -(-tokens // _ALIGNMENT) * _ALIGNMENT)
        mean = max(tokens * places.top_k // places.experts, 1)
        gate_up = self._multiply(places.gather(x, found, rounded=self.rounded), w13, found, mean)
        act = places.activate(gate_up, found, rounded=self.rounded)
        return places.add_up(self._multiply(act, w2, found, mean), found, weights, ids)

    def _multiply(self, rows: Rows, weight: Any, found: Sorted, mean: int) -> Tensor:
        """``rows [R, K]`` -> ``[R, N]``; ``mean`` is a hint: the rows that an expert has on average."""
        count, size_out = len(rows.data), (weight[0] if self.rounded else weight).shape[1]
        out = torch.empty(count, size_out, dtype=torch.bfloat16, device=rows.data.device)
        left: Any = rows.data if rows.scale is None else (rows.data, rows.scale)
        if found.experts is not None:
            self.contiguous(left, weight, out, found.experts)
            return out
        experts = self.places.experts
        left = torch.unflatten(rows.data, 0, (experts, -1))
        if rows.scale is not None:
            # Every expert's columns together.
            by_expert = torch.unflatten(rows.scale.T, 1, (experts, -1)).transpose(0, 1).contiguous()
            left = left, by_expert.transpose(1, 2)
        self.masked(left, weight, torch.unflatten(out, 0, (experts, -1)), found.counts, mean)
        return out


@dataclass(frozen=True, slots=True)
class _Experts:
    """Weights are tensors or :class:`Fp8Weight`; ``few`` serves up to ``_FEW`` tokens if it is given."""

    grouped: GroupedExperts
    few: Any = None
    """A kernel of the same op."""

    @classmethod
    def build(cls, facts: Facts, *, rounded: bool, hybrid: bool) -> _Experts:
        from frizzen.kernels.triton.fp8_moe import Fp8Experts

        few = Fp8Experts.build(facts) if hybrid else None
        return cls(GroupedExperts.build(facts, rounded=rounded), few)

    def prepare(self, w13: Any, w2: Any, b13: Tensor | None, b2: Tensor | None) -> Experts:
        pair = [(w.data, w.scale) if isinstance(w, Fp8Weight) else w for w in (w13, w2)]
        few: Experts | None = None if self.few is None else self.few.prepare(w13, w2, b13, b2)

        def run(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
            if few is not None and len(x) <= _FEW:
                return few(x, weights, ids)
            return self.grouped.run(x, weights, ids, *pair)

        return run


def _experts(op: str, name: str, rank: int, *, rounded: bool, hybrid: bool) -> Candidate:
    requires = _requires_fp8_experts if rounded else _requires_bf16_experts
    return Candidate(
        op, name, rank, requires, functools.partial(_Experts.build, rounded=rounded, hybrid=hybrid)
    )


# In FP8, up to 256 tokens are Triton's: on an H200 147 us against 185 at 32 tokens and 192 against 283 at 256
# (128 experts of 2048 by 768, 8 per token), but 1566 against 956 at 8,192. In bfloat16, Triton takes 1360 us
# there, this 1444.
CANDIDATES = (
    Candidate(LINEAR_FP8.name, "deep_gemm", 60, _requires_linear, Fp8Linear.build),
    _experts(MOE_EXPERTS_FP8.name, "triton_deep_gemm", 60, rounded=True, hybrid=True),
    _experts(MOE_EXPERTS_FP8.name, "deep_gemm", 40, rounded=True, hybrid=False),
    _experts(MOE_EXPERTS.name, "deep_gemm", 40, rounded=False, hybrid=False),
)
