"""Stand-ins for the CUDA libraries, so that a CUDA build of torch imports on a machine without a GPU.

The registry's torch for Linux is a CUDA build. Its shared objects name a dozen CUDA libraries (about 2 GB to
download) that must be found before ``import torch`` succeeds, although a process without a GPU never calls
them. This module reads from torch's own objects which libraries those are and which symbols they owe, and
compiles one small library for each.

Invariants:
- Every stand-in function fails: it returns 100 (``cudaErrorNoDevice``, and not success in any other CUDA
  library), so torch sees "no device" and raises its ordinary error if a CUDA call is forced. Functions named
  ``*String`` and ``*Name`` return a text.
- A real library always wins: stand-ins lie in torch's own ``lib`` folder, the last one on torch's library
  path.
- A stand-in is written only for a library that is missing, and only under a name that a CUDA library bears.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

STUB_LIMIT = 1 << 20  # bytes; no stand-in is as large
CUDA_LIBRARY = re.compile(r"lib(cu[a-zA-Z]+|nv[a-zA-Z_]+|nccl)\.so\.\d+")
C_NAME = re.compile(r"[A-Za-z_]\w*")
MARKER = (
    "this torch set-up has no CUDA libraries"  # in every stand-in, so that it is told from a real library
)
ROOTS = ("libtorch_python.so", "libtorch_global_deps.so")  # what the import of torch loads by itself

Symbols = dict[str, set[str]]  # symbol version ("" for none) -> names


@dataclass(slots=True)
class Elf:
    """What one 64-bit little-endian shared object asks of others and offers to them."""

    needed: list[str] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    # (library, version) -> names; the library is "" where the reference bears no version.
    undefined: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()


def read_elf(path: Path) -> Elf:
    """Reads the dynamic symbols of ``path``.

    Raises ``ValueError`` if it is no 64-bit little-endian ELF object.
    """
    with path.open("rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            raise ValueError(
                f"{path.name} is not a 64-bit little-endian elf object: it starts with {head[:6]!r}"
            )
        (section_offset,) = struct.unpack_from("<Q", head, 40)
        entry_size, count, names_index = struct.unpack_from("<HHH", head, 58)
        file.seek(section_offset)
        raw = file.read(entry_size * count)
        sections = [struct.unpack_from("<IIQQQQIIQQ", raw, i * entry_size) for i in range(count)]

        def load(section: tuple[int, ...]) -> bytes:
            file.seek(section[4])
            return file.read(section[5])

        names = load(sections[names_index])
        by_name = {_text(names, s[0]): s for s in sections}
        body = {
            name: load(by_name[name]) if name in by_name else b""
            for name in (".dynstr", ".dynsym", ".dynamic", ".gnu.version", ".gnu.version_r")
        }
    strings = body[".dynstr"]
    elf = Elf()
    elf.needed = [
        _text(strings, value) for tag, value in struct.iter_unpack("<qQ", body[".dynamic"]) if tag == 1
    ]
    versions = _needed_versions(body[".gnu.version_r"], strings)
    versym = struct.unpack(f"<{len(body['.gnu.version']) // 2}H", body[".gnu.version"])
    for i, (name, _, _, section_index, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", body[".dynsym"])):
        if i == 0:
            continue
        if section_index:
            elf.defined.add(_text(strings, name))
        else:
            key = versions.get(versym[i] & 0x7FFF, ("", "")) if versym else ("", "")
            elf.undefined[key].add(_text(strings, name))
    return elf


def _needed_versions(body: bytes, strings: bytes) -> dict[int, tuple[str, str]]:
    """Version index -> (library, version), from a ``.gnu.version_r`` section."""
    versions: dict[int, tuple[str, str]] = {}
    at = 0
    while body:
        _, count, file_name, aux, following = struct.unpack_from("<HHIII", body, at)
        aux_at = at + aux
        for _ in range(count):
            _, _, index, name, aux_following = struct.unpack_from("<IHHII", body, aux_at)
            versions[index] = (_text(strings, file_name), _text(strings, name))
            aux_at += aux_following
        if not following:
            break
        at += following
    return versions


def missing_libraries(torch_lib: Path, search: list[Path]) -> dict[str, Symbols]:
    """CUDA libraries that torch needs and that lie in none of ``search``, with the symbols they owe."""
    loaded: dict[str, Elf] = {}
    queue = [name for name in ROOTS if (torch_lib / name).exists()]
    wanted: set[str] = set()
    while queue:
        name = queue.pop()
        if name in loaded:
            continue
        loaded[name] = read_elf(torch_lib / name)
        for needed in loaded[name].needed:
            if CUDA_LIBRARY.fullmatch(needed):
                wanted.add(needed)
            elif (torch_lib / needed).exists():
                queue.append(needed)
    missing = {name for name in wanted if not any(_is_real(folder / name) for folder in search)}
    owed: dict[str, Symbols] = {name: defaultdict(set) for name in missing}
    defined = set().union(*(elf.defined for elf in loaded.values()))
    for elf in loaded.values():
        for (library, version), symbols in elf.undefined.items():
            for symbol in symbols - defined:
                owner = library or _owner(symbol, missing)
                if owner in owed:
                    owed[owner][version].add(symbol)
    return owed


def _is_real(library: Path) -> bool:
    """Whether the library exists and is not a stand-in, which may have been written for another torch."""
    if not library.exists():
        return False
    return library.stat().st_size > STUB_LIMIT or MARKER.encode() not in library.read_bytes()


def _owner(symbol: str, libraries: set[str]) -> str:
    """The library whose name the symbol starts with (``ncclSend`` -> ``libnccl.so.2``), or ""."""
    stems = {name[3:].split(".so")[0].lower(): name for name in libraries}
    fitting = [stem for stem in stems if symbol.lower().startswith(stem)]
    return stems[max(fitting, key=len)] if fitting else ""


def stub_source(symbols: Symbols) -> str:
    """C text of one stand-in. Raises ``ValueError`` on a name that is not a C identifier."""
    lines = [f'__attribute__((used)) static const char missing[] = "{MARKER}";']
    for name in sorted(set().union(*symbols.values())):
        if not C_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a c identifier")
        if name.endswith(("String", "Name")):
            lines.append(f"const char *{name}(void) {{ return missing; }}")
        else:
            lines.append(f"long {name}(void) {{ return 100; }}")
    return "\n".join(lines) + "\n"


def version_script(symbols: Symbols) -> str:
    """Linker version script: torch's references name their version, so the stand-in must define it."""
    nodes = [
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};"
        for version, names in sorted(symbols.items())
        if version
    ]
    return "\n".join(nodes) + "\n"


def write_stubs(torch_lib: Path, search: list[Path], compiler: str = "cc") -> list[Path]:
    """Compiles a stand-in into ``torch_lib`` for every missing CUDA library; returns the files written.

    Raises ``RuntimeError`` with the compiler's words if one does not compile, ``OSError`` without a compiler.
    """
    written = []
    for library, symbols in sorted(missing_libraries(torch_lib, [*search, torch_lib]).items()):
        with tempfile.TemporaryDirectory() as scratch:
            source, script, built = (Path(scratch) / name for name in ("stub.c", "stub.map", library))
            source.write_text(stub_source(symbols))
            script.write_text(version_script(symbols))
            command = [
                compiler,
                "-shared",
                "-fPIC",
                "-fno-builtin",
                "-w",
                "-O1",
                "-nostdlib",
                f"-Wl,-soname,{library}",
            ]
            if any(symbols):
                command.append(f"-Wl,--version-script={script}")
            run = subprocess.run(
                [*command, "-o", str(built), str(source)], capture_output=True, text=True, check=False
            )
            if run.returncode:
                raise RuntimeError(
                    f"{compiler} could not build a stand-in for {library}: {run.stderr.strip()}"
                )
            target = torch_lib / library
            target.write_bytes(built.read_bytes())
            written.append(target)
    return written


def main(arguments: list[str]) -> int:
    """``cuda_stubs.py SITE_PACKAGES``: writes what is missing there and names it."""
    site = Path(arguments[0])
    for path in write_stubs(site / "torch" / "lib", sorted(site.glob("nvidia/*/lib"))):
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
