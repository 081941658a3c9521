"""The files that name versions agree with each other."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
KERNELS: dict[str, Any] = tomllib.loads((ROOT / "python" / "frizzen" / "kernel_packages.toml").read_text())
CARGO: dict[str, Any] = tomllib.loads((ROOT / "Cargo.toml").read_text())
OUTSIDE = sorted(name for name in KERNELS if name != "torch")


def locked(group: str) -> dict[str, set[str]]:
    """Name -> versions in one lock file; several where they differ by Python."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9-]+)==(\S+)", (ROOT / f"requirements/{group}.txt").read_text(), re.M
    ):
        found.setdefault(name, set()).add(version)
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[;]", requirement)[0].strip() for requirement in requirements}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_the_package_and_the_workspace_bear_one_version() -> None:
    assert PROJECT["project"]["version"] == CARGO["workspace"]["package"]["version"]


@pytest.mark.parametrize("package", OUTSIDE)
def test_extras_install_the_first_build_of_a_kernel_package(package: str) -> None:
    table = KERNELS[package]
    pinned = f"{table['package']}=={table['builds'][0]['version']}"
    assert PROJECT["project"]["optional-dependencies"][table["extra"]] == [pinned]


@pytest.mark.parametrize("package", OUTSIDE)
def test_every_build_of_a_kernel_package_says_how_it_is_known(package: str) -> None:
    for build in KERNELS[package]["builds"]:
        assert build["evidence"] in ("run", "import")
        assert build["torch"]
    for rejected in KERNELS[package]["rejected"]:
        assert rejected["reason"]
        assert rejected["torch"]


def test_torch_versions_agree_with_the_extra() -> None:
    torch = KERNELS["torch"]
    assert PROJECT["project"]["optional-dependencies"]["torch"] == [f"torch>={torch['minimum']}"]
    assert torch["default"] in torch["checked"]
    assert all(numbers(version) >= numbers(torch["minimum"]) for version in torch["checked"])


@pytest.mark.parametrize("group", ["build", "model", "test-model", "torch-cpu", "dev"])
def test_a_groups_lock_file_covers_it(group: str) -> None:
    assert names(PROJECT["dependency-groups"][group]) <= locked(group).keys()


def test_the_runtime_lock_file_covers_the_dependencies() -> None:
    assert names(PROJECT["project"]["dependencies"]) <= locked("runtime").keys()


def test_one_environment_can_hold_every_lock_file() -> None:
    together: dict[str, set[str]] = {}
    for group in ("runtime", "build", "torch-cpu", "model", "test-model", "dev"):
        for name, versions in locked(group).items():
            assert together.setdefault(name, versions) == versions, f"{name} differs in {group}"


def test_torch_is_locked_nowhere_so_that_the_user_can_choose_it() -> None:
    assert not any(
        "torch" in locked(group) for group in ("runtime", "build", "torch-cpu", "model", "test-model", "dev")
    )
    assert "torch" not in names(PROJECT["project"]["dependencies"])


def test_every_crate_but_the_extension_is_tested_by_default() -> None:
    crates = {f"rust/{path.parent.name}" for path in ROOT.glob("rust/*/Cargo.toml")}
    assert set(CARGO["workspace"]["default-members"]) == crates - {"rust/py"}
