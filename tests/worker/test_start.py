"""What a start takes: its timeline, and what it must not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from frizzen.progress import Timeline, process_age
from tests.conftest import COMMON
from tests.worker.test_launch import build

MOE = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MOE), encoding="utf-8")
    return tmp_path


def test_phases_follow_each_other_without_a_gap_and_one_that_comes_again_is_added() -> None:
    ticks = iter([10.0, 11.5, 12.0, 15.0])
    timeline = Timeline(4.0, lambda: next(ticks))
    for name in ("plan", "load", "plan"):
        timeline.mark(name)
    assert timeline.phases == {"before": 4.0, "plan": 4.5, "load": 0.5}
    lines = timeline.table().splitlines()
    assert lines[0] == "started in 9.00 s"
    assert [line.split()[0] for line in lines[1:]] == ["before", "plan", "load"]
    assert [line.split()[-2] for line in lines[1:]] == ["4.00", "8.50", "9.00"]


def test_the_age_of_a_process_is_known_whatever_its_name(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        stat = Path(f"/proc/{other.pid}/stat").read_text(encoding="utf-8")
        strange = tmp_path / "stat"
        strange.write_text(stat.replace("(", "((a ) 1 2 "), encoding="utf-8")
        assert 0 <= process_age(strange) < process_age()
        other.communicate(b"\n")
    assert process_age(tmp_path / "nowhere") == 0


def test_a_worker_tells_the_phases_of_its_start(model: Path) -> None:
    start = build(model, load_format="dummy").info["start"]
    names, seconds = ([phase[key] for phase in start] for key in ("phase", "seconds"))
    assert names == ["before", "device", "plan", "load", "allocate", "compile", "warm up"]
    assert min(seconds) >= 0
    assert sum(seconds) <= process_age() + 0.001 * len(seconds)


def test_a_start_imports_no_compiler_of_torch(model: Path) -> None:
    """It takes seconds, and one operator on torch's device ``meta`` is enough to bring it in."""
    script = (
        "import sys; from frizzen.config import EngineConfig; from frizzen.worker import start;"
        f"start.build(EngineConfig(model={str(model)!r}, load_format='dummy', device='cpu').to_json());"
        "print(sorted({'sympy', 'torch._dynamo', 'transformers', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
