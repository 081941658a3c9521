"""The kernel plan: who wins, why the others lost, and what the user gets to see."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from frizzen.errors import PlanError
from frizzen.kernels.facts import Facts, Machine, default_dtype, detect_machine
from frizzen.kernels.ops import NORM_RMS
from frizzen.kernels.plan import Candidate, Op, PlanBuilder, Reason, Registry, default_registry
from frizzen.kernels.problems import disagreement

OP: Op[Any] = Op("demo.op", ("size",), "a contract")
MACHINE = Machine("cpu", frozenset({"avx2"}), 2, (("torch", "2.11.0"),))
MISSING = Reason("missing_package", "the package demo is not installed", "pip install demo")


def anywhere(_: Facts) -> None:
    return None


def candidate(name: str, rank: int, reason: Reason | None = None, op: str = OP.name) -> Candidate:
    return Candidate(op, name, rank, lambda _: reason, lambda _: name)


def builder(*candidates: Candidate, **options: Any) -> PlanBuilder:
    return PlanBuilder(Registry(candidates), MACHINE, **options)


def resolve(plan: PlanBuilder, size: int = 8, **place: Any) -> Any:
    return plan.resolve(OP, torch.float32, **{"site": "here", **place}, size=size)


def test_the_highest_rank_that_can_serve_wins_and_every_loser_has_a_reason() -> None:
    plan = builder(candidate("slow", 0), candidate("fast", 20), candidate("faster", 30, MISSING))
    assert resolve(plan) == "fast"
    (choice,) = plan.plan().choices
    assert (choice.winner, choice.rank) == ("fast", 20)
    assert [(loser.candidate, loser.reason.code) for loser in choice.rejected] == [
        ("faster", "missing_package"),
        ("slow", "outranked"),
    ]
    assert [loser.candidate for loser in choice.degraded] == ["faster"]


def test_equal_facts_share_one_kernel_and_different_ones_do_not() -> None:
    made = Candidate(OP.name, "made", 0, anywhere, lambda facts: [facts.size("size")])
    plan = builder(made)
    first, again, other = resolve(plan, layer=0), resolve(plan, layer=1), resolve(plan, size=9, layer=2)
    assert first is again
    assert other == [9]


def test_a_candidate_that_fails_to_build_is_rejected_with_the_error() -> None:
    def fail(_: Facts) -> Any:
        raise OSError("undefined symbol: demo_gemm\nand a long tail")

    plan = builder(Candidate(OP.name, "broken", 10, anywhere, fail), candidate("slow", 0))
    assert resolve(plan) == "slow"
    reason = plan.plan().choices[0].rejected[0].reason
    assert (reason.code, reason.message) == ("build_failed", "OSError: undefined symbol: demo_gemm")


def test_an_op_that_nothing_serves_is_an_error_with_every_reason() -> None:
    with pytest.raises(PlanError, match=r"nothing serves demo\.op for \{'size': 8\}: only: the package demo"):
        resolve(builder(candidate("only", 5, MISSING)))


def test_a_shape_that_is_not_the_op_s_is_refused() -> None:
    with pytest.raises(PlanError, match=r"demo\.op is described by \['size'\], got \['width'\]"):
        builder(candidate("slow", 0)).resolve(OP, torch.float32, site="here", width=8)


def test_strict_names_what_the_user_can_fix_and_only_that() -> None:
    fixable = builder(candidate("slow", 0), candidate("fast", 9, MISSING))
    resolve(fixable)
    with pytest.raises(PlanError, match=r"fast is not used .* fix: pip install demo"):
        fixable.plan().strict()
    other_device = Reason("device", "this runs on cuda, the layer is on cpu")
    settled = builder(candidate("slow", 0), candidate("fast", 9, other_device))
    resolve(settled)
    settled.plan().strict()


def test_the_table_groups_equal_layers_and_shows_why_nothing_faster_serves() -> None:
    elsewhere = Reason("device", "this runs on cuda, the layer is on cpu")
    plan = builder(candidate("slow", 0), candidate("fast", 9, MISSING), candidate("gpu", 10, elsewhere))
    plan.decide("dtype", "float32", "it was asked for")
    for layer in (0, 1, 2, 5):
        resolve(plan, layer=layer)
    resolve(plan, site="head")
    assert plan.plan().table().splitlines() == [
        "kernel plan (cpu)",
        "  dtype = float32: it was asked for",
        "  op       site  layers  kernel",
        "  demo.op  here  0-2,5   slow",
        "      not fast: missing_package: the package demo is not installed (fix: pip install demo)",
        "  demo.op  head  -       slow",
        "      not fast: missing_package: the package demo is not installed (fix: pip install demo)",
    ]


def test_the_json_holds_winners_losers_and_decisions() -> None:
    plan = builder(candidate("slow", 0), candidate("fast", 9, MISSING))
    plan.decide("dtype", "float32", "it was asked for")
    resolve(plan, layer=0)
    resolve(plan, layer=1)
    assert json.loads(json.dumps(plan.plan().to_json())) == {
        "device": "cpu",
        "decisions": [{"name": "dtype", "value": "float32", "reason": "it was asked for"}],
        "kernels": [
            {
                "op": "demo.op",
                "site": "here",
                "layers": [[0, 1]],
                "kernel": "slow",
                "rejected": [
                    {
                        "kernel": "fast",
                        "code": "missing_package",
                        "message": "the package demo is not installed",
                        "fix": "pip install demo",
                        "faster": True,
                    }
                ],
            }
        ],
    }


def test_two_candidates_of_one_op_differ_in_name_and_rank() -> None:
    for twin in (candidate("one", 2), candidate("two", 1)):
        with pytest.raises(PlanError, match=r"demo\.op has two candidates"):
            Registry([candidate("one", 1), twin])


def test_a_restricted_registry_keeps_the_named_candidate_of_an_op() -> None:
    registry = Registry([candidate("a", 0), candidate("b", 1), candidate("c", 0, op="other.op")])
    only = registry.restricted({OP.name: "a"})
    assert [entry.name for entry in only.candidates(OP.name)] == ["a"]
    assert [entry.name for entry in only.candidates("other.op")] == ["c"]
    with pytest.raises(PlanError, match=r"demo\.op has no candidate z, only b, a"):
        registry.restricted({OP.name: "z"})


class WrongNorm:
    def prepare(self, weight: torch.Tensor, eps: float) -> Any:
        return lambda x, residual: x * weight


class NanNorm:
    def prepare(self, weight: torch.Tensor, eps: float) -> Any:
        return lambda x, residual: x * torch.nan


@pytest.mark.parametrize("kernel", [WrongNorm, NanNorm])
def test_a_kernel_that_disagrees_with_the_reference_is_quarantined(kernel: Any) -> None:
    wrong = Candidate(NORM_RMS.name, "wrong", 99, anywhere, lambda _: kernel())
    reference = default_registry().candidates(NORM_RMS.name)[-1]
    plan = PlanBuilder(Registry([wrong, reference]), detect_machine("cpu"), check=disagreement)
    plan.resolve(NORM_RMS, torch.float32, site="norm", size=32)
    (choice,) = plan.plan().choices
    assert choice.winner == "reference"
    assert choice.rejected[0].reason.code == "disagrees"


def test_collecting_candidates_touches_no_gpu() -> None:
    default_registry()
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("machine", "dtype", "why"),
    [
        (Machine("cpu", frozenset({"avx512_bf16"}), 2, ()), torch.bfloat16, "avx512_bf16"),
        (Machine("cpu", frozenset({"avx512_bf16", "amx_bf16"}), 2, ()), torch.bfloat16, "amx_bf16"),
        (Machine("cpu", frozenset({"avx2"}), 2, ()), torch.float32, "neither"),
        (Machine("cuda", frozenset({"sm_90"}), 2, ()), torch.bfloat16, "cuda"),
    ],
)
def test_auto_dtype_follows_the_instructions_that_the_machine_has(
    machine: Machine, dtype: torch.dtype, why: str
) -> None:
    found, reason = default_dtype(machine)
    assert found == dtype
    assert why in reason


def test_layers_with_the_same_kernels_are_of_one_kind() -> None:
    builder = PlanBuilder(default_registry(), detect_machine("cpu"))
    for layer in range(6):
        builder.resolve(NORM_RMS, torch.float32, site="norm", layer=layer, size=64 if layer % 3 else 32)
        builder.resolve(NORM_RMS, torch.float32, site="other", layer=layer, size=64)
    builder.resolve(NORM_RMS, torch.float32, site="final", size=64)
    assert builder.distinct_layers(1) == (0, 1)
    assert builder.distinct_layers(2) == (0, 1, 2, 3)
