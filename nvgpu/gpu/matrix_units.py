"""The opt-in copy of wgpu's native library that grants `cooperative-matrix`; tools/enable_matrix_units.py makes it.

wgpu-native 29 lists the feature but refuses it at device creation: features in `Features::all_experimental_mask`
need an opt-in that its C interface cannot express. In the copy that function returns an empty mask; nothing else
differs. Linux on x86-64 only. The installed library is read, never written.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from nvgpu.errors import FormatError, InputError

FUNCTION = "wgpu_types::features::Features::all_experimental_mask"
BODY = "48 b8 <imm64> 31 d2 c3"  # movabs $imm64,%rax; xor %edx,%edx; ret

_NAME_PARTS = (b"wgpu_types", b"all_experimental_mask")  # the mangled name ends in a hash of the compilation
_HEAD, _TAIL = bytes.fromhex("48b8"), bytes.fromhex("31d2c3")
_BODY_SIZE = len(_HEAD) + 8 + len(_TAIL)
_LIBRARY = "libwgpu_native-release.so"

# of the ELF64 format, little-endian
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_X86_64, _PT_LOAD, _PF_X, _SHT_SYMTAB, _SHT_DYNSYM, _STT_FUNC = 62, 1, 1, 2, 11, 2


# ── the patch ──


def patched(library: bytes, name: str) -> bytes:
    """`library` with the mask that `FUNCTION` returns set to zero; `name` is what errors call the file.

    Raises:
        FormatError: not an ELF file of x86-64, damaged, or the function is missing, ambiguous or not as expected.
    """
    begin = function_offset(library, name) + len(_HEAD)
    return library[:begin] + bytes(8) + library[begin + 8 :]


def function_offset(library: bytes, name: str) -> int:
    """Where in the file the body of `FUNCTION` begins, after a check of every byte of it.

    Raises:
        FormatError: see `patched`.
    """
    elf = _Elf(library, name)
    symbol, address, size = _function(elf)
    offset = elf.code_offset(address, min(size, _BODY_SIZE), symbol)
    body = elf.take(offset, min(size, _BODY_SIZE), symbol)
    if size != _BODY_SIZE or not (body.startswith(_HEAD) and body.endswith(_TAIL)):
        raise elf.wrong(
            f"body of {symbol}",
            f"{body.hex(' ') or 'nothing'} ({size} bytes)",
            f"{BODY} ({_BODY_SIZE} bytes)",
        )
    if not any(body[len(_HEAD) : -len(_TAIL)]):
        raise elf.wrong(f"mask in {symbol}", "0", "a mask that is not yet empty")
    return offset


def _function(elf: _Elf) -> tuple[str, int, int]:
    """Symbol, address and size of `FUNCTION`; once in each of the two symbol tables is still one function."""
    found = {s for s in elf.functions() if all(part in s[0] for part in _NAME_PARTS)}
    if len(found) != 1:
        seen = ", ".join(
            f"{symbol.decode('ascii', 'replace')} at {address:#x}" for symbol, address, _ in sorted(found)
        )
        raise elf.wrong(f"symbol of {FUNCTION}", seen or "none", "exactly one")
    symbol, address, size = found.pop()
    return symbol.decode("ascii", "replace"), address, size


class _Elf:
    """What the patch needs of an ELF64 file; every read is checked against the file's end."""

    def __init__(self, data: bytes, name: str) -> None:
        self.data = data
        self.name = name
        ident, _, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = self._unpack(
            _ELF_HEADER, 0, "ELF header"
        )
        expectations = (
            ("magic", ident[:4].hex(" "), b"\x7fELF".hex(" ")),
            ("class", ident[4], 2),
            ("byte order", ident[5], 1),
            ("machine", machine, _X86_64),
            ("program header size", phentsize, _PROGRAM_HEADER.size),
            ("section header size", shentsize, _SECTION_HEADER.size),
        )
        for what, found, expected in expectations:
            if found != expected:
                raise self.wrong(f"ELF {what}", found, expected)
        self._segments = self._table(_PROGRAM_HEADER, phoff, phnum * phentsize, "program headers")
        self._sections = self._table(_SECTION_HEADER, shoff, shnum * shentsize, "section headers")

    def wrong(self, what: str, found: object, expected: object) -> FormatError:
        return FormatError(f"{self.name}: {what}: found {found}, expected {expected}")

    def take(self, offset: int, size: int, what: str) -> bytes:
        if offset + size > len(self.data):
            raise self.wrong(
                what, f"bytes {offset} to {offset + size}", f"at most the file's {len(self.data)}"
            )
        return self.data[offset : offset + size]

    def functions(self) -> Iterator[tuple[bytes, int, int]]:
        """Symbol, address and size of every function the file defines."""
        for _, kind, _, _, offset, size, link, _, _, entry_size in self._sections:
            if kind not in (_SHT_SYMTAB, _SHT_DYNSYM):
                continue
            if entry_size != _SYMBOL.size or size % _SYMBOL.size:
                raise self.wrong(
                    "symbol table", f"{size} bytes in entries of {entry_size}", f"entries of {_SYMBOL.size}"
                )
            if link >= len(self._sections):
                raise self.wrong(
                    "string table of a symbol table", f"section {link}", f"less than {len(self._sections)}"
                )
            start, length = self._sections[link][4:6]
            strings = self.take(start, length, "string table")
            for start, info, _, section, address, length in self._table(
                _SYMBOL, offset, size, "symbol table"
            ):
                if info & 15 == _STT_FUNC and section:
                    end = strings.find(b"\0", start)
                    if end < 0:
                        raise self.wrong(
                            "symbol name",
                            f"offset {start}",
                            f"a string that ends within {len(strings)} bytes",
                        )
                    yield strings[start:end], address, length

    def code_offset(self, address: int, size: int, symbol: str) -> int:
        """Where in the file the code that loads at `address` stands."""
        found = [
            offset + address - start
            for kind, flags, offset, start, _, file_size, _, _ in self._segments
            if kind == _PT_LOAD and flags & _PF_X and start <= address and address + size <= start + file_size
        ]
        if len(found) != 1:
            raise self.wrong(
                f"address {address:#x} of {symbol}", f"{len(found)} code segments that hold it", "exactly one"
            )
        return int(found[0])

    def _unpack(self, form: struct.Struct, offset: int, what: str) -> tuple[Any, ...]:
        return form.unpack(self.take(offset, form.size, what))

    def _table(self, form: struct.Struct, offset: int, size: int, what: str) -> list[tuple[Any, ...]]:
        return list(form.iter_unpack(self.take(offset, size, what)))


# ── where the copy is, and its use ──


def supported() -> bool:
    """Whether this is Linux on x86-64, the only system the patch is written for."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def installed_library() -> Path:
    """The native library that wgpu-py brings along, found without loading it.

    Raises:
        InputError: wgpu-py is not installed, or came without the library.
    """
    spec = importlib.util.find_spec("wgpu")
    if spec is None or not spec.submodule_search_locations:
        raise InputError("wgpu: not installed, expected the Python package wgpu with its native library")
    path = Path(spec.submodule_search_locations[0], "resources", _LIBRARY)
    if not path.is_file():
        raise InputError(f"{path}: not found, expected wgpu-py's native library")
    return path


def cache_folder() -> Path:
    """Where copies are kept; it need not exist."""
    return platformdirs.user_cache_path("nvgpu") / "matrix-units"


def cache_path(version: str, library: bytes) -> Path:
    """Where the copy of `library`, the original of wgpu-py `version`, belongs; no other original shares the name."""
    return cache_folder() / f"libwgpu_native-{version}-{hashlib.sha256(library).hexdigest()[:16]}.so"


def wgpu_version() -> str:
    """The version of the installed wgpu-py, without importing it.

    Raises:
        InputError: wgpu-py is not installed.
    """
    try:
        return importlib.metadata.version("wgpu")
    except importlib.metadata.PackageNotFoundError as e:
        raise InputError("wgpu: not installed, expected the Python package wgpu") from e


def kept_from_use() -> str | None:
    """The environment variable that keeps `activate` from using a copy, as NAME=VALUE; None if there is none."""
    values = {n: os.environ.get(n, "").strip() for n in ("NVGPU_MATRIX_UNITS", "WGPU_DEBUG", "WGPU_LIB_PATH")}
    expected = {
        "NVGPU_MATRIX_UNITS": "0",
        "WGPU_DEBUG": "1",
    }  # WGPU_LIB_PATH: anything but blank, as in wgpu-py
    return next((f"{n}={v}" for n, v in values.items() if v and v == expected.get(n, v)), None)


def activate() -> None:
    """Make wgpu-py load the copy, if there is one of exactly the installed library; never raises.

    Costs a look into the cache without a copy, and a hash of the library (10 ms) with one: size and time of a file
    do not tell two builds apart, as installers may set any time.
    """
    try:
        if not supported() or kept_from_use() or "wgpu.backends.wgpu_native" in sys.modules:
            return
        version = wgpu_version()
        if not any(cache_folder().glob(f"libwgpu_native-{version}-*.so")):
            return
        library = installed_library().read_bytes()
        copy = cache_path(version, library)
        if copy.is_file() and copy.stat().st_size == len(library):
            os.environ["WGPU_LIB_PATH"] = str(copy)
    except Exception:  # the installed library works too; a start must not fail over the copy
        return
