"""``make build``: the virtual environment, everything at locked versions, the extension in release.

Runs under any Python >= 3.11 with the standard library alone (``tools/find_python.sh`` finds it). Every step
is skipped when what it would do is already done, as recorded in one state file in the environment, so a
second run takes a moment.

Environment variables:
    FRIZZEN_TORCH_INDEX: index that serves CPU builds of torch; tried first on a machine without a GPU.
    FRIZZEN_TORCH_VERSION: another torch than the default of kernel_packages.toml.
    FRIZZEN_TORCH: ``full`` installs the registry's torch with its CUDA libraries even without a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tools import cuda_stubs, torch_choice
from tools.steps import StepError, Steps, folder_megabytes

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "frizzen-setup.json"
REQUIREMENTS = ROOT / "requirements"
# Byte code is made at the first import of a module: most of torch and transformers is never imported.
PIP_INSTALL: tuple[str | Path, ...] = (PYTHON, "-m", "pip", "install", "--no-compile")


@dataclass(slots=True)
class State:
    """What earlier runs did: step -> fingerprint of its inputs. Written at once, to resume."""

    done: dict[str, str]

    @classmethod
    def load(cls) -> State:
        """The recorded state; an empty one if there is none that can be read."""
        try:
            return cls(dict(json.loads(STATE.read_text())))
        except (OSError, ValueError, TypeError):
            return cls({})

    def is_done(self, step: str, fingerprint: str) -> bool:
        """Whether ``step`` was done with these very inputs."""
        return self.done.get(step) == fingerprint

    def record(self, step: str, fingerprint: str) -> None:
        """Writes down that ``step`` is done."""
        self.done[step] = fingerprint
        STATE.write_text(json.dumps(self.done, indent=1) + "\n")


def site_packages() -> Path:
    """The environment's site-packages folder; it exists once the environment does."""
    return next((VENV / "lib").glob("python3*/site-packages"))


def make_environment(steps: Steps) -> None:
    """Creates ``.venv``, anew if its interpreter no longer runs or is too old."""
    check = [str(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if PYTHON.exists() and subprocess.run(check, capture_output=True, check=False).returncode == 0:
        return
    steps.run("virtual environment", [sys.executable, "-m", "venv", "--clear", VENV])


def install_group(steps: Steps, state: State, title: str, groups: tuple[str, ...]) -> None:
    """Installs locked groups with their hashes checked. The files are complete: pip resolves nothing."""
    files = [REQUIREMENTS / f"{group}.txt" for group in groups]
    fingerprint = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    step = "packages " + " ".join(groups)
    if state.is_done(step, fingerprint):
        return
    command: list[str | Path] = [*PIP_INSTALL, "--no-deps", "--require-hashes"]
    for file in files:
        command += ["-r", file]
    steps.run(title, command)
    state.record(step, fingerprint)


def install_torch(steps: Steps, state: State) -> None:
    """Tries the ways to get torch until one computes. Raises ``StepError`` with all reasons if none does."""
    default, minimum = torch_choice.wanted_versions()
    asked = os.environ.get("FRIZZEN_TORCH_VERSION")
    installed = torch_choice.installed_version(site_packages())
    full = os.environ.get("FRIZZEN_TORCH") == "full"
    gpu = torch_choice.has_gpu()
    if state.is_done("torch", fingerprint := f"{installed} {asked} {full} {gpu}"):
        return
    config = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    version = asked or default
    facts = torch_choice.Facts(
        version=version,
        pinned=asked is not None,
        minimum=minimum,
        installed=installed,
        gpu=gpu,
        cpu_index=os.environ.get("FRIZZEN_TORCH_INDEX") or None,
        wheel_folders=torch_choice.wheel_folders(config.stdout, version),
        linux=sys.platform == "linux",
        full=full,
    )
    refused: list[str] = []
    for attempt in torch_choice.attempts(facts):
        reason = try_torch(steps, attempt, gpu)
        if not reason:
            installed = torch_choice.installed_version(site_packages())
            size = folder_megabytes(site_packages() / "torch") + folder_megabytes(site_packages() / "nvidia")
            steps.say("torch", f"{attempt.way}; {size:.0f} MB on disk")
            fingerprint = f"{installed} {asked} {full} {gpu}"
            state.record("torch", fingerprint)
            return
        refused.append(f"{attempt.way}: {reason}")
        print(f"    no: {reason.splitlines()[-1].strip()}", flush=True)
    raise StepError("no way to get a torch that works:\n" + "\n".join(refused))


def try_torch(steps: Steps, attempt: torch_choice.Attempt, gpu: bool) -> str | None:
    """Installs torch in one way and runs it; returns None, or the reason why it will not do."""
    if attempt.arguments:
        try:
            print(f"    trying {attempt.way}", flush=True)
            steps.run("torch", [*PIP_INSTALL, *attempt.arguments])
        except StepError as error:
            return str(error)
    answer = torch_choice.probe(PYTHON)
    if not answer["works"] and attempt.stubs:
        try:
            written = cuda_stubs.write_stubs(
                site_packages() / "torch" / "lib", sorted(site_packages().glob("nvidia/*/lib"))
            )
        except (OSError, ValueError, RuntimeError) as error:
            return f"{answer.get('error')}; and no stand-ins for the cuda libraries: {error}"
        steps.say("torch", f"wrote stand-ins for {len(written)} CUDA libraries that a CPU never calls")
        answer = torch_choice.probe(PYTHON)
    if not answer["works"]:
        return str(answer.get("error", "it computes wrong values"))
    if gpu and not answer["cuda"] and not attempt.arguments:
        return "it sees no gpu, and this machine has one"
    return None


def source_fingerprint() -> str:
    """Names, sizes and times of all that the extension is built from, and the compiler with its flags."""
    files = [path for path in (ROOT / "rust").rglob("*") if path.is_file()]
    files += [ROOT / name for name in ("Cargo.toml", "Cargo.lock", "pyproject.toml", "rust-toolchain.toml")]
    digest = hashlib.sha256(os.environ.get("RUSTFLAGS", "").encode())
    for path in sorted(path for path in files if path.exists()):
        stat = path.stat()
        digest.update(f"{path.relative_to(ROOT)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False, cwd=ROOT)
    return f"{digest.hexdigest()} {rustc.stdout.strip()}"


def build_extension(steps: Steps, state: State) -> None:
    """Builds ``frizzen._core`` in release and installs the package in place, if a source has changed.

    cargo decides what to compile; the fingerprint only spares an unchanged tree the rewriting of its library.
    """
    fingerprint = source_fingerprint()
    built = list((ROOT / "python" / "frizzen").glob("_core*.so"))
    if built and (VENV / "bin" / "frizzen").exists() and state.is_done("extension", fingerprint):
        return
    for library in built:
        library.unlink()  # it is rewritten in place, under the feet of a server that runs from it
    command = [*PIP_INSTALL, "--verbose", "--no-deps", "--no-build-isolation", "--editable", ROOT]
    steps.run("extension (release)", command)
    state.record("extension", fingerprint)


def missing_tools() -> list[str]:
    """What the build needs and the machine lacks, each with where it was looked for."""
    missing = []
    if not shutil.which("cargo"):
        missing.append(
            "rust: there is no cargo on PATH or in ~/.cargo/bin; install the stable toolchain with rustup"
        )
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing.append("a c compiler: there is no cc, gcc or clang on PATH")
    return missing


def main() -> int:
    """Runs the steps; prints why and returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make build")
    parser.add_argument("--dev", action="store_true", help="the packages of tests and lints too")
    arguments = parser.parse_args()
    os.environ["PATH"] += os.pathsep + str(Path.home() / ".cargo" / "bin")
    for line in (missing := missing_tools()):
        print(f"cannot build: {line}", file=sys.stderr)
    if missing:
        return 1
    started = time.monotonic()
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment["PATH"] = f"{VENV / 'bin'}{os.pathsep}{environment['PATH']}"
    if environment.get("CI"):
        environment["MATURIN_PEP517_ARGS"] = "--locked"
    steps = Steps(ROOT / "target" / "setup-logs", environment)
    try:
        make_environment(steps)
        state = State.load()
        install_group(steps, state, "packages", ("runtime", "build", "torch-cpu"))
        install_torch(steps, state)
        install_group(steps, state, "weights of SmolLM2-135M-Instruct", ("model",))
        if arguments.dev:
            install_group(steps, state, "packages of tests and lints", ("dev",))
            install_group(steps, state, "weights of all-MiniLM-L6-v2, for tests", ("test-model",))
        build_extension(steps, state)
    except StepError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what is done is kept, and the same command goes on from there", file=sys.stderr)
        return 130
    if steps.number:
        size = f"{folder_megabytes(VENV):.0f} MB in {VENV.name}"
        print(f"ready in {time.monotonic() - started:.0f} s: {VENV / 'bin' / 'frizzen'} ({size})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
