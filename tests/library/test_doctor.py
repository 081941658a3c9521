"""frizzen doctor: what it finds, and what it says to do."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from frizzen import doctor
from frizzen.__main__ import main
from frizzen.doctor_extras import extras
from tests.conftest import CheckpointMaker

ROOT = Path(__file__).resolve().parents[2]


def versions(**found: str) -> Callable[[str], str | None]:
    return lambda package: found.get(package.replace("-", "_"))


def test_this_machine_is_examined_and_problems_decide_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert code == any(finding["level"] == "problem" for finding in findings)
    assert {"frizzen", "torch", "cpu", "files"} <= {finding["topic"] for finding in findings}
    assert all(finding["level"] in doctor.LEVELS for finding in findings)


def test_the_text_has_a_line_per_finding_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [doctor.Finding("ok", "cpu", "is there"), doctor.Finding("problem", "files", "too few", "more")]
    monkeypatch.setattr(doctor, "examine", lambda model: found)
    assert doctor.run([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok      cpu    is there",
        "problem files  too few",
        "               -> more",
        "1 problems, 0 hints, 1 fine",
    ]


def test_more_threads_than_processors_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frizzen.worker.machine.available_cpus", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    (_, threads) = doctor._processors({"OMP_NUM_THREADS": "64"})
    assert (threads.level, threads.fix) == ("problem", "set OMP_NUM_THREADS to at most 2, or unset it")
    assert [finding.topic for finding in doctor._processors({})] == ["cpu"]


def test_a_busy_machine_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frizzen.worker.machine.available_cpus", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (8.0, 8.0, 8.0))
    assert doctor._processors({})[-1].text.startswith("4.0 processes per processor")


@pytest.mark.parametrize(
    ("limit", "level", "fix"),
    [
        ((256, 1 << 20), "problem", "ulimit -n 4096"),
        ((256, 1024), "problem", "raise the hard limit, 1024, as root"),
        ((65536, 65536), "ok", None),
    ],
)
def test_few_open_files_are_a_problem(
    limit: tuple[int, int], level: str, fix: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: limit)
    (finding,) = doctor._limits()
    assert (finding.level, finding.fix) == (level, fix)


def test_a_model_without_a_tokenizer_is_a_problem(tiny_checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    (fine,) = doctor._model(str(tiny_checkpoint("llama")))
    assert fine.level == "ok"
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (missing,) = doctor._model(str(tmp_path))
    assert (missing.level, missing.topic) == ("problem", "tokenizer")
    (unknown,) = doctor._model("no-such-model")
    assert unknown.level == "problem"


def test_extras_for_gpus_are_not_mentioned_on_a_cpu() -> None:
    assert [topic for _, topic, _, _ in extras("cpu", None, 0, versions())] == ["extra hub"]


def test_an_extra_that_would_help_is_a_hint_with_the_command_that_installs_it() -> None:
    found = {
        topic: (level, fix) for level, topic, _, fix in extras("cuda", "sm_90", 1, versions(torch="2.11.0"))
    }
    assert found["extra deep-gemm"] == ("hint", "pip install 'frizzen[deep-gemm]'")
    assert "extra deep-ep" not in found
    assert "extra deep-ep" in {entry[1] for entry in extras("cuda", "sm_90", 2, versions())}
    assert "extra deep-gemm" not in {entry[1] for entry in extras("cuda", "sm_80", 1, versions())}


@pytest.mark.parametrize(("torch", "level"), [("2.11.0+cu130", "problem"), ("2.13.0", "ok")])
def test_a_build_that_is_known_to_fail_with_this_torch_is_a_problem(torch: str, level: str) -> None:
    installed = versions(sgl_deep_gemm="0.1.5.post3", torch=torch, huggingface_hub="1.0")
    found = {topic: (level, text, fix) for level, topic, text, fix in extras("cuda", "sm_90", 1, installed)}
    assert found["extra deep-gemm"][0] == level
    if level == "problem":
        assert "known to fail" in found["extra deep-gemm"][1]
        assert "0.1.5 with torch ==2.11.*" in (found["extra deep-gemm"][2] or "")


def test_every_gain_names_a_benchmark_that_exists_and_every_extra_can_be_installed() -> None:
    table = tomllib.loads((ROOT / "python/frizzen/extras.toml").read_text(encoding="utf-8"))["extra"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {extra["name"] for extra in table} == set(project["optional-dependencies"])
    for extra in table:
        for entry in extra.get("measured", []):
            assert entry["gain"] > 0
            assert (ROOT / "benches/results" / entry["benchmark"]).is_file()
