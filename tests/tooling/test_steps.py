"""Running long commands: what is shown, what is kept, what is raised."""

import os
import re
import sys
from pathlib import Path

import pytest

from tools import steps
from tools.steps import StepError, Steps


def test_a_step_reports_its_time_and_what_pip_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = (
        "Downloading torch-2.whl (539.1 MB)\\nUsing cached numpy.whl (17.0 MB)\\nDownloading tiny.whl (12 kB)"
    )
    Steps(tmp_path, os.environ).run("Some packages", [sys.executable, "-c", f"print('{said}')"])
    assert re.search(
        r"\[1\] Some packages: \d+\.\d s, 539 MB downloaded, 17 MB from pip's cache", capsys.readouterr().out
    )
    assert "539.1" in (tmp_path / "01-some-packages.log").read_text()


def test_a_failing_step_raises_with_the_end_of_its_output(tmp_path: Path) -> None:
    program = "import sys; [print('line', i) for i in range(100)]; print('why', file=sys.stderr); sys.exit(3)"
    with pytest.raises(StepError, match=r"status 3") as raised:
        Steps(tmp_path, os.environ).run("build", [sys.executable, "-c", program])
    assert "why" in str(raised.value)
    assert "line 99" in str(raised.value)
    assert "line 5\n" not in str(raised.value)


def test_folder_size_counts_blocks_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1_000_000))
    (tmp_path / "link").symlink_to(sys.executable)
    assert steps.folder_megabytes(tmp_path) == pytest.approx(1.0, rel=0.05)
