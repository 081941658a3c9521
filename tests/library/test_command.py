"""The frizzen command and the cost of importing the package."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType

import pytest

from frizzen.__main__ import main
from frizzen.plan_report import report
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


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_plan_prints_a_report_and_on_request_json(
    dry_run: list[str], tiny_checkpoint: CheckpointMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["plan", str(tiny_checkpoint("llama")), "--dtype", "float32", "--device", "cpu", *dry_run]
    assert main(line) == 0
    printed = capsys.readouterr().out
    for text in (
        "attention.paged",
        "slower ones:",
        "kv_cache",
        "It fits. A request may have up to 256 tokens",
    ):
        assert text in printed
    assert main([*line, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {kernel["op"] for kernel in plan["kernels"]} >= {"linear", "attention.paged", "norm.rms"}
    assert plan["memory"]["kv_cache"] >= 2 * 16 * plan["memory"]["kv_per_token"]
    measured = [owner["measured"] for owner in plan["memory"]["owners"] if owner["owner"] == "kv_cache"]
    assert measured == [None if dry_run else plan["memory"]["kv_cache"]]


def test_plan_knows_what_a_drafter_takes_before_it_is_read(
    tiny_checkpoint: CheckpointMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_checkpoint("llama"))
    line = ["plan", path, "--device", "cpu", "--dry-run", "--json"]
    drafting = ["--drafter", f"draft_model={path}", "--draft-sample-method", "probabilistic"]
    found = []
    for more in ([], drafting):
        assert main([*line, *more, "--num-speculative-tokens", "2"]) == 0
        found.append(json.loads(capsys.readouterr().out)["memory"])
    alone, drafted = found
    owners = {owner["owner"]: owner for owner in drafted["owners"]}
    assert owners["weights"]["predicted"] == 2 * alone["weights"]
    assert owners["weights"]["parts"]["drafter"] == alone["weights"]
    assert drafted["kv_per_token"] == 2 * alone["kv_per_token"]
    assert owners["drafts"]["predicted"] > 0


def test_plan_shows_a_reason_and_what_to_do_about_it() -> None:
    plan = {
        "decisions": [{"name": "max_model_len", "value": "10", "reason": "so"}],
        "kernels": [
            {
                "op": "linear",
                "site": "qkv",
                "layers": [[0, 3], [5, 5]],
                "kernel": "torch",
                "rejected": [
                    {
                        "kernel": "fast",
                        "code": "missing_package",
                        "message": "no fast",
                        "fix": "get it",
                        "faster": True,
                    },
                    {"kernel": "gpu", "code": "device", "message": "no gpu", "fix": None, "faster": True},
                    {"kernel": "reference", "code": "outranked", "message": "", "fix": None, "faster": False},
                ],
            }
        ],
        "memory": {"owners": [], "free_before": 1, "device": "cpu", "kv_cache": 40, "kv_per_token": 2},
    }
    lines = report("title", plan).splitlines()
    assert "  linear     qkv    0-3,5   torch" in lines
    at = lines.index("      not fast: missing_package: no fast")
    assert lines[at + 1 : at + 3] == ["          to have it: get it", "      slower ones: reference"]
    assert not any("gpu" in line for line in lines)
    assert lines[-1].endswith("the KV cache holds 20 tokens, 2.0 such requests at a time.")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu-capability", "sm_90"], "give gpu_memory too"),
        (["--gpu-memory", "many"], "'many' is not a number of bytes"),
        (["--gpu-memory", "80GB", "--device", "cpu"], "neither device cpu nor self_test"),
        (["--dry-run", "--dtype", "int8"], "dtype must be one of"),
    ],
)
def test_plan_refuses_what_it_cannot_show(
    arguments: list[str], problem: str, tiny_checkpoint: CheckpointMaker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(tiny_checkpoint("llama")), *arguments]) == 1
    assert problem in capsys.readouterr().err


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
