"""Each rule of the house catches what it is for, and lets the owner of the matter through."""

from pathlib import Path

import pytest

from tools import source_rules


@pytest.mark.parametrize(
    ("rule", "name", "line"),
    [
        ("only_py_attaches", "rust/engine/src/run.rs", "Python::attach(|py| worker.call0(py))"),
        ("only_py_attaches", "rust/server/src/lib.rs", "py.detach(|| wait())"),
        ("only_py_depends_on_pyo3", "rust/engine/Cargo.toml", "pyo3.workspace = true"),
        ("one_stream_owner", "python/frizzen/worker/worker.py", "torch.cuda.set_stream(side)"),
        ("one_stream_owner", "python/frizzen/layers/moe.py", "with torch.cuda.stream(side):"),
        ("kernel_packages_behind_adapters", "python/frizzen/layers/moe.py", "import deep_gemm"),
        ("kernel_packages_behind_adapters", "python/frizzen/layers/moe.py", "    from flashinfer import x"),
        ("no_skip_outside_the_quarantine", "rust/sched/src/lib.rs", '#[ignore = "flaky"]'),
        ("no_skip_outside_the_quarantine", "tests/test_llm.py", '@pytest.mark.skip(reason="flaky")'),
        ("no_machine_paths", "README.md", "cd /home/me/frizzen"),
        ("no_unfinished_code", "rust/core/src/lib.rs", "todo!()"),
        ("no_unfinished_code", "python/frizzen/llm.py", "raise NotImplementedError"),
    ],
)
def test_a_breach_is_found_and_located(rule: str, name: str, line: str) -> None:
    (found,) = source_rules.breaches(source_rules.RULES, name, f"fine\n{line}\n")
    assert found.startswith(f"{name}:2: ")
    assert f"({rule})" in found


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rust/py/src/gil.rs", "Python::attach(f)"),
        ("rust/py/Cargo.toml", "pyo3.workspace = true"),
        ("python/frizzen/parallel/streams.py", "torch.cuda.set_stream(self.main)"),
        ("python/frizzen/kernels/deep_gemm.py", "import deep_gemm"),
        ("tests/test_gpu.py", '@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device")'),
        ("rust/server/src/lib.rs", "let attach = attachment();"),
        ("README.md", "the network/root/ of trust"),
    ],
)
def test_what_is_allowed_passes(name: str, line: str) -> None:
    assert source_rules.breaches(source_rules.RULES, name, line) == []


def test_the_tree_itself_keeps_the_rules() -> None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return  # an unpacked archive has no list of its own files; the lints of a clone cover this
    assert source_rules.check(root) == []
