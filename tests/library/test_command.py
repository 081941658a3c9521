"""The frizzen command and the cost of importing the package."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

from frizzen.__main__ import main
from tests.conftest import CheckpointMaker


def test_help_lists_the_commands_of_both_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("serve MODEL", "plan MODEL", "--version", "bench", "mock-serve"))


@pytest.mark.parametrize(
    ("command", "reason"), [("bench", "is a command of the Rust binary"), ("dance", "is not a command")]
)
def test_other_commands_end_with_status_2_and_the_way_out(
    command: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command]) == 2
    assert capsys.readouterr().err == f"frizzen: {command} {reason}; frizzen --help lists the commands\n"


def test_serve_passes_its_arguments_on_and_its_exit_code_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    core = ModuleType("frizzen._core")

    def serve(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    core.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "frizzen._core", core)
    assert main(["serve", "smollm2-135m", "--port", "1"]) == 3
    assert seen == [["smollm2-135m", "--port", "1"]]


def test_plan_prints_the_table_and_on_request_json(
    tiny_checkpoint: CheckpointMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_checkpoint("llama"))
    assert main(["plan", path, "--dtype", "float32", "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "attention.paged" in printed.err
    assert main(["plan", path, "--device", "cpu", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {kernel["op"] for kernel in plan["kernels"]} >= {"linear", "attention.paged", "norm.rms"}
    assert plan["memory"]["kv_cache"] >= 2 * 16 * plan["memory"]["kv_per_token"]


def test_plan_of_an_unknown_model_is_an_error_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err


def test_importing_frizzen_loads_neither_torch_nor_the_extension() -> None:
    """The modules are the claim; the time is theirs, and depends on the machine."""
    code = (
        "import sys; import frizzen; from frizzen import LLM, SamplingParams; "
        "print([name for name in ('torch', 'numpy', 'frizzen._core') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists() -> None:
    import frizzen

    for name in frizzen.__all__:
        if name != "__version__":
            assert getattr(frizzen, name).__name__ == name
    assert set(dir(frizzen)) == set(frizzen.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Model'"):
        frizzen.Model  # type: ignore[attr-defined]  # noqa: B018
