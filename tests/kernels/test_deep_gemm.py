"""The adapter of DeepGEMM, on a module that computes the same in torch: what is found and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from frizzen.errors import PlanError
from frizzen.kernels.deep_gemm import SPELLINGS, Binding, UnusableError, activation_arguments, advice
from frizzen.kernels.deep_gemm_kernels import CANDIDATES
from frizzen.kernels.facts import Facts, Machine
from tests.kernels import fake_deep_gemm as fake

H200 = Machine("cuda", frozenset({"sm_90"}), 1, ())
BLOCKS = {"block_rows": 128, "block_columns": 128}
MIXTURE = {"experts": 8, "top_k": 2, "clamp": 0.0, "alpha": 1.0, "beta": 0.0, "bias": False}


def refused(name: str, **changes: Any) -> tuple[str, str]:
    with pytest.raises(UnusableError) as caught:
        Binding(fake.module(**changes), "cpu").function(name)
    return caught.value.reason.code, caught.value.reason.message


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_function_passes_its_trial_by_its_canonical_name(name: str) -> None:
    module = fake.module()
    assert Binding(module, "cpu").function(name) is getattr(module, name)


@pytest.mark.parametrize(
    ("name", "old"), [(name, old) for name, spellings in SPELLINGS.items() for old in spellings[1:]]
)
def test_an_old_spelling_serves_where_the_canonical_name_is_missing(name: str, old: str) -> None:
    module = fake.module(**{name: None, old: getattr(fake.module(), name)})
    assert Binding(module, "cpu").function(name) is getattr(module, old)


def test_the_canonical_name_goes_before_an_old_spelling() -> None:
    module = fake.module(fp8_fp4_gemm_nt=lambda *_: pytest.fail("the old spelling was called"))
    assert Binding(module, "cpu").function("fp8_gemm_nt") is fake.dense


def test_a_function_without_any_of_its_names_is_missing_with_all_of_them() -> None:
    code, message = refused("m_grouped_fp8_gemm_nt_masked", m_grouped_fp8_gemm_nt_masked=None)
    assert code == "missing_symbol"
    assert message == "deep_gemm 0.1.5 has no " + " or ".join(SPELLINGS["m_grouped_fp8_gemm_nt_masked"])


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_build_for_another_torch_imports_and_is_refused_when_it_runs(name: str) -> None:
    """0.1.5.post3 under torch 2.11."""

    def fails(*_: object) -> None:
        raise RuntimeError("Assertion error: dim == 2 or dim == 3\nand where")

    code, message = refused(name, __version__="0.1.5.post3", **{name: fails})
    assert code == "run_error"
    assert message.endswith("fails: RuntimeError: Assertion error: dim == 2 or dim == 3")
    assert "0.1.5.post3" in message


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("result", [torch.nan, 0.0])
def test_a_function_that_returns_something_else_is_refused(name: str, result: float) -> None:
    code, message = refused(name, **{name: lambda *arguments: arguments[2].fill_(result)})
    assert code == "wrong_result"
    assert "at most 0.01 is allowed" in message


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (
            ModuleNotFoundError("No module named 'deep_gemm'", name="deep_gemm"),
            "missing_package",
            "not installed",
        ),
        (ModuleNotFoundError("No module named 'tvm_ffi'", name="tvm_ffi"), "import_error", "needs tvm_ffi"),
        (OSError("undefined symbol: torch_exception_get_what"), "import_error", "torch_exception_get_what"),
    ],
)
def test_an_import_that_fails_is_reported_with_its_text(error: Exception, code: str, part: str) -> None:
    def importer(_: str) -> Any:
        raise error

    with pytest.raises(UnusableError, match=part) as caught:
        Binding.load("cpu", importer)
    assert caught.value.reason.code == code
    assert caught.value.reason.fix == advice()


@pytest.mark.parametrize(
    ("torch_version", "wanted"),
    [
        ("2.11.0+cu130", "pip install sgl-deep-gemm==0.1.5"),
        ("2.11.1", "pip install sgl-deep-gemm==0.1.5"),
        ("2.13.0", "pip install sgl-deep-gemm==0.2.5"),
        ("2.14.1+cu130", "pip install sgl-deep-gemm==0.2.5"),
        ("2.12.0", None),
    ],
)
def test_the_data_file_says_which_build_fits_which_torch(torch_version: str, wanted: str | None) -> None:
    assert advice(torch_version) == wanted


def mega(y: Any, *, activation_clamp: float | None = None) -> None:
    """Named as one binding has it."""


def forked(
    y: Any, *, activation_clamp: Any = None, activation_alpha: Any = 1, activation_beta: Any = 0
) -> None:
    """Named as another has it."""


def test_activation_parameters_are_passed_by_the_names_of_the_binding() -> None:
    assert activation_arguments(mega, clamp=7.0, alpha=1.0, beta=0.0) == {"activation_clamp": 7.0}
    assert activation_arguments(mega, clamp=0.0, alpha=None) == {}
    assert activation_arguments(forked, clamp=7.0, alpha=1.702, beta=1.0) == {
        "activation_clamp": 7.0,
        "activation_alpha": 1.702,
        "activation_beta": 1.0,
    }


def test_an_activation_parameter_that_cannot_be_expressed_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"mega has no activation_alpha, .* an activation with alpha 1\.702"):
        activation_arguments(mega, clamp=7.0, alpha=1.702)


@pytest.mark.parametrize(
    ("op", "shape", "code", "part"),
    [
        (
            "linear.fp8",
            {"in_features": 130, "out_features": 128, "bias": False, **BLOCKS},
            "shape",
            "128 by 130",
        ),
        (
            "linear.fp8",
            {"in_features": 128, "out_features": 128, "bias": False, "block_rows": 1, "block_columns": 0},
            "blocks",
            "blocks of 1 by 0",
        ),
        (
            "moe.experts.fp8",
            {**MIXTURE, "hidden": 256, "intermediate": 200, **BLOCKS},
            "shape",
            "intermediate is 200",
        ),
        ("moe.experts", {**MIXTURE, "hidden": 256, "intermediate": 256, "bias": True}, "bias", "take none"),
    ],
)
def test_what_the_products_do_not_compute_is_refused_before_the_package_is_imported(
    op: str, shape: dict[str, Any], code: str, part: str
) -> None:
    candidate = next(entry for entry in CANDIDATES if entry.op == op)
    reason = candidate.requires(Facts.of(H200, torch.bfloat16, shape))
    assert reason is not None
    assert (reason.code, bool(re.search(part, reason.message))) == (code, True)
