"""Stand-ins for CUDA libraries, on a small imitation of torch's shared objects."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import cuda_stubs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None,
    reason="reads elf objects that the c compiler makes",
)


def compile_library(folder: Path, name: str, source: str, *flags: str) -> Path:
    code = folder / f"{name}.c"
    code.write_text(source)
    built = folder / name
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", "-o", built, code, *flags], check=True
    )
    code.unlink()
    return built


def load_and_print(path: Path, values: str) -> str:
    """What a process of its own prints: a library loaded here would answer for torch's of the same name."""
    program = f"""
import ctypes
library = ctypes.CDLL({str(path)!r})
text = ctypes.CFUNCTYPE(ctypes.c_char_p)
print({values})
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return (run.stdout or run.stderr).strip()


@pytest.fixture
def torch_lib(tmp_path: Path) -> Path:
    """An imitation of torch/lib: an object that owes a versioned and a plain symbol to absent libraries."""
    lib = tmp_path / "torch" / "lib"
    absent = tmp_path / "absent"
    for folder in (lib, absent):
        folder.mkdir(parents=True)
    script = absent / "map"
    script.write_text("libcublas.so.13 { global: *; };\n")
    cublas = compile_library(
        absent, "libcublas.so.13", "int cublasCreate_v2(void){return 0;}", f"-Wl,--version-script={script}"
    )
    nccl = compile_library(absent, "libnccl.so.2", "const char*ncclGetErrorString(void){return 0;}")
    source = (
        "int cublasCreate_v2(void); const char *ncclGetErrorString(void);"
        "int create(void){return cublasCreate_v2();} const char *say(void){return ncclGetErrorString();}"
    )
    compile_library(lib, "libtorch_python.so", source, cublas, nccl, "-Wl,-rpath,$ORIGIN", "-Wl,-z,now")
    return lib


def test_missing_libraries_are_named_with_the_symbols_and_versions_that_they_owe(torch_lib: Path) -> None:
    assert cuda_stubs.missing_libraries(torch_lib, [torch_lib]) == {
        "libcublas.so.13": {"libcublas.so.13": {"cublasCreate_v2"}},
        "libnccl.so.2": {"": {"ncclGetErrorString"}},
    }


def test_an_object_loads_and_its_calls_fail_once_stand_ins_exist(torch_lib: Path) -> None:
    assert "cannot open shared object file" in load_and_print(
        torch_lib / "libtorch_python.so", "library.create()"
    )
    written = cuda_stubs.write_stubs(torch_lib, [])
    assert [path.name for path in written] == ["libcublas.so.13", "libnccl.so.2"]
    said = load_and_print(torch_lib / "libtorch_python.so", "library.create(), text(('say', library))()")
    assert said == f"100 {cuda_stubs.MARKER.encode()!r}"


def test_a_real_library_is_never_replaced(torch_lib: Path) -> None:
    absent = torch_lib.parent.parent / "absent"
    shutil.copy(absent / "libnccl.so.2", torch_lib)
    before = (torch_lib / "libnccl.so.2").read_bytes()
    written = cuda_stubs.write_stubs(torch_lib, [absent])
    assert written == []
    assert (torch_lib / "libnccl.so.2").read_bytes() == before


def test_stand_ins_of_another_torch_are_written_anew(torch_lib: Path) -> None:
    cuda_stubs.write_stubs(torch_lib, [])
    stale = torch_lib / "libcublas.so.13"
    compile_library(torch_lib, stale.name, cuda_stubs.stub_source({"": {"cublasOther"}}))
    assert stale in cuda_stubs.write_stubs(torch_lib, [])
    assert load_and_print(stale, "library.cublasCreate_v2()") == "100"


def test_a_name_that_is_no_c_identifier_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a c identifier"):
        cuda_stubs.stub_source({"": {"f(void); int main"}})


def test_a_file_that_is_no_elf_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libtorch_python.so").write_text("INPUT(libreal.so)")
    with pytest.raises(ValueError, match="not a 64-bit little-endian elf object"):
        cuda_stubs.missing_libraries(tmp_path, [tmp_path])
