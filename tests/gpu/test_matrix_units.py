"""The patched copy of wgpu's library: the patch on a made-up library, where the copy goes, and when it is used."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from nvgpu.errors import FormatError, InputError
from nvgpu.gpu import matrix_units
from nvgpu.gpu.matrix_units import (
    activate,
    cache_folder,
    cache_path,
    function_offset,
    installed_library,
    patched,
)

TOOL = Path(__file__).parents[2] / "tools" / "enable_matrix_units.py"
SYMBOL = "_ZN10wgpu_types8features8Features21all_experimental_mask17he6a3ed7945601ef2E"
OTHER = "_ZN10wgpu_types8features8Features5empty17h0123456789abcdefE"
MASK = bytes.fromhex("0000000001008702")
BODY = bytes.fromhex("48b8") + MASK + bytes.fromhex("31d2c3")
CODE = 64 + 2 * 56  # after the ELF header and room for two program headers
OFFSET = CODE + 16  # of the function in the file
SHIFT = 0x1000  # how much higher than that it loads
FUNC, OBJECT = 2, 1
SYMTAB, DYNSYM = 2, 11

Symbol = tuple[str, int, int, int]  # name, address, size, type


def symbol(
    name: str = SYMBOL, address: int = OFFSET + SHIFT, size: int = len(BODY), kind: int = FUNC
) -> Symbol:
    return name, address, size, kind


def library(
    body: bytes = BODY,
    symbols: Sequence[Symbol] = (symbol(OTHER, CODE + SHIFT, 16), symbol()),
    tables: Sequence[int] = (SYMTAB,),
    flags: int = 5,
    loads: int = 1,
    **header: int,
) -> bytes:
    """A library of one code segment, one symbol table of each kind in `tables`, and section headers at its end."""
    code = b"\xcc" * 16 + body + b"\xcc" * 19
    names, entries = b"\0", bytes(24)
    for name, address, size, kind in symbols:
        entries += struct.pack("<IBBHQQ", len(names), kind, 0, 1, address, size)
        names += name.encode() + b"\0"
    loaded = CODE + len(code)
    data = struct.pack("<IIQQQQQQ", 1, flags, 0, SHIFT, SHIFT, loaded, loaded, 0x1000) * loads
    data = data.ljust(CODE - 64, b"\0") + code
    sections = bytes(64) + section(1, CODE, len(code))
    for kind in tables:
        sections += section(kind, 64 + len(data), len(entries), 2 + len(tables), header.get("entry_size", 24))
        data += entries
    sections += section(3, 64 + len(data), len(names))
    data += names
    values = {"bits": 2, "order": 1, "machine": 62, "segment_size": 56, "section_size": 64} | header
    ident = b"\x7fELF" + bytes([values["bits"], values["order"], 1]).ljust(12, b"\0")
    counts = (64, values["segment_size"], loads, values["section_size"], len(sections) // 64, 0)
    return (
        ident
        + struct.pack("<HHIQQQIHHHHHH", 3, values["machine"], 1, 0, 64, 64 + len(data), 0, *counts)
        + data
        + sections
    )


def section(kind: int, offset: int, size: int, link: int = 0, entry_size: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, entry_size)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no variable that matters set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("WGPU_LIB_PATH", "WGPU_DEBUG", "NVGPU_MATRIX_UNITS"):
        monkeypatch.setenv(name, "")  # so that it is restored whatever `activate` sets
        monkeypatch.delenv(name)
    return tmp_path / "cache" / "nvgpu" / "matrix-units"


# ── the patch ──


@pytest.mark.parametrize("tables", [(SYMTAB,), (DYNSYM,), (DYNSYM, SYMTAB)])
def test_only_the_mask_becomes_zero(tables: tuple[int, ...]) -> None:
    data = library(tables=tables)
    assert function_offset(data, "lib.so") == OFFSET
    assert patched(data, "lib.so") == data[: OFFSET + 2] + bytes(8) + data[OFFSET + 10 :]


def test_only_functions_count() -> None:
    symbols = [symbol(), symbol(SYMBOL + "_data", kind=OBJECT), symbol("all_experimental_mask", OFFSET, 1)]
    assert function_offset(library(symbols=symbols), "lib.so") == OFFSET


AT_THE_END = len(library()) + SHIFT
REFUSED = {
    "magic": (b"PK\3\4" + library()[4:], "magic: found 50 4b 03 04, expected 7f 45 4c 46"),
    "32-bit": (library(bits=1), "class: found 1, expected 2"),
    "big-endian": (library(order=2), "byte order: found 2, expected 1"),
    "AArch64": (library(machine=183), "machine: found 183, expected 62"),
    "program header size": (library(segment_size=32), "found 32, expected 56"),
    "section header size": (library(section_size=40), "found 40, expected 64"),
    "symbol size": (library(entry_size=16), "entries of 16, expected entries of 24"),
    "no symbol": (
        library(symbols=[symbol(OTHER)]),
        "all_experimental_mask: found none, expected exactly one",
    ),
    "no symbol table": (library(tables=()), "found none, expected exactly one"),
    "twice": (library(symbols=[symbol(), symbol(address=OFFSET + SHIFT + 13)]), "found .* at .*, .* at .*"),
    "two names": (library(symbols=[symbol(), symbol(SYMBOL + "2")]), "found .* at .*, .* at .*"),
    "not code": (library(flags=6), "found 0 code segments"),
    "two segments": (library(loads=2), "found 2 code segments"),
    "before all": (library(symbols=[symbol(address=8)]), "address 0x8 .*: found 0 code segments"),
    "after all": (library(symbols=[symbol(address=AT_THE_END)]), "found 0 code segments"),
    "far away": (library(symbols=[symbol(address=(1 << 64) - 1)]), "found 0 code segments"),
    "empty mask": (library(BODY.replace(MASK, bytes(8))), "mask in .*: found 0"),
    "no bytes": (b"", "found bytes 0 to 64, expected at most the file's 0"),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=f"^lib.so: .*{message}"):
        patched(data, "lib.so")


BODIES = {
    "mov ecx": BODY.replace(b"\xb8", b"\xb9"),
    "high half set": BODY.replace(b"\x31\xd2", b"\x31\xc0"),
    "no ret": BODY[:-1] + b"\x90",
    "shorter": bytes.fromhex("31c031d2c3"),
    "empty": b"",
    "longer": b"\x55" + BODY,
    "goes on": BODY + b"\x90",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_other_body_is_shown(body: bytes) -> None:
    data = library(body, [symbol(size=len(body))])
    found = body[: len(BODY)].hex(" ") or "nothing"
    expected = rf"body of {SYMBOL}: found {found} \({len(body)} bytes\), expected 48 b8 <imm64> 31 d2 c3 \(13 bytes\)"
    with pytest.raises(FormatError, match=expected):
        patched(data, "lib.so")


def test_body_outside_the_file() -> None:
    data = bytearray(library())
    struct.pack_into(
        "<Q", data, 64 + 8, len(data) - OFFSET
    )  # the segment's offset: the code would begin at the end
    with pytest.raises(FormatError, match=f"found bytes {len(data)} to {len(data) + 13}, expected at most"):
        patched(bytes(data), "lib.so")


def test_truncated_anywhere() -> None:
    data = library(tables=(DYNSYM, SYMTAB))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            patched(data[:size], "lib.so")


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_no_wrong_byte_leads_to_another_error(value: int) -> None:
    data = library()
    for at in range(len(data)):
        damaged = data[:at] + bytes([value]) + data[at + 1 :]
        try:
            offset = function_offset(damaged, "lib.so")
        except FormatError:
            continue
        assert damaged[offset : offset + 2] + damaged[offset + 10 : offset + 13] == bytes.fromhex(
            "48b831d2c3"
        )


@pytest.mark.skipif(not matrix_units.supported(), reason="the tool is for Linux on x86-64")
def test_installed_library_can_be_patched() -> None:
    path = installed_library()
    data = path.read_bytes()
    copy = patched(data, str(path))
    begin = function_offset(data, str(path)) + 2
    assert len(copy) == len(data)
    assert (copy[:begin], copy[begin + 8 :]) == (data[:begin], data[begin + 8 :])
    assert path.read_bytes() == data


# ── the copy's place and use ──


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up library in place of the installed one, on a system that is supported, not loaded yet."""
    path = tmp_path / "libwgpu_native-release.so"
    path.write_bytes(library())
    monkeypatch.setattr(matrix_units, "installed_library", lambda: path)
    monkeypatch.setattr(matrix_units, "wgpu_version", lambda: "1.2.3")
    monkeypatch.setattr(matrix_units, "supported", lambda: True)
    monkeypatch.delitem(sys.modules, "wgpu.backends.wgpu_native", raising=False)
    return path


@pytest.fixture
def copy(installed: Path) -> Path:
    path = cache_path("1.2.3", library())
    path.parent.mkdir(parents=True)
    path.write_bytes(patched(library(), "lib.so"))
    return path


def test_place_of_the_copy(cache: Path) -> None:
    digest = hashlib.sha256(library()).hexdigest()[:16]
    assert cache_path("1.2.3", library()) == cache / f"libwgpu_native-1.2.3-{digest}.so"
    assert cache_path("1.2.4", library()) != cache_path("1.2.3", library())
    assert cache_path("1.2.3", library() + b"\0") != cache_path("1.2.3", library())
    assert cache_folder() == cache
    assert not cache.exists()


def test_missing_wgpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="wgpu: not installed"):
        installed_library()


def test_the_copy_is_used(copy: Path) -> None:
    activate()
    assert os.environ["WGPU_LIB_PATH"] == str(copy)


def test_blank_path_counts_as_unset(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGPU_LIB_PATH", " ")
    activate()
    assert os.environ["WGPU_LIB_PATH"] == str(copy)


def test_without_a_copy_nothing_is_set(installed: Path) -> None:
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


@pytest.mark.parametrize(
    ("name", "value"), [("NVGPU_MATRIX_UNITS", "0"), ("WGPU_DEBUG", "1"), ("WGPU_LIB_PATH", "my.so")]
)
def test_environment_keeps_the_copy_from_use(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert matrix_units.kept_from_use() == f"{name}={value}"
    activate()
    assert os.environ.get("WGPU_LIB_PATH") == (value if name == "WGPU_LIB_PATH" else None)


def test_copy_of_another_version_is_not_used(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_units, "wgpu_version", lambda: "1.2.4")
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


def test_copy_of_another_build_is_not_used(copy: Path, installed: Path) -> None:
    installed.write_bytes(library()[:-1] + b"\1")
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


def test_incomplete_copy_is_not_used(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-1])
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


def test_no_copy_once_a_library_is_loaded(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wgpu.backends.wgpu_native", ModuleType("wgpu_native"))
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


@pytest.mark.parametrize(
    "name", ["supported", "wgpu_version", "cache_folder", "installed_library", "cache_path"]
)
@pytest.mark.parametrize("error", [OSError("x"), InputError("x"), ValueError("x")])
def test_activate_never_raises(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(matrix_units, name, fail)
    activate()
    assert "WGPU_LIB_PATH" not in os.environ


# ── the tool ──


@pytest.fixture
def tool(installed: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("enable_matrix_units", TOOL)
    assert spec is not None and spec.loader is not None
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", [str(TOOL), *words])
    return int(tool.main())


def test_tool_keeps_a_copy_that_passes(
    tool: ModuleType,
    installed: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checked: list[bytes] = []
    monkeypatch.setattr(tool, "failure", lambda path: checked.append(path.read_bytes()))
    assert call(tool, monkeypatch) == 0
    copy = cache_path("1.2.3", library())
    assert checked == [copy.read_bytes()] == [patched(library(), "lib.so")]
    assert list(cache.iterdir()) == [copy]
    assert installed.read_bytes() == library()
    assert capsys.readouterr().out == f"made {copy}\nnvgpu uses the copy\n"
    assert call(tool, monkeypatch, "--status") == 0
    assert f"copy: {copy}\nnvgpu uses the copy\n" in capsys.readouterr().out
    assert call(tool, monkeypatch, "--remove") == 0
    assert capsys.readouterr().out == f"deleted {copy}\n"
    assert not list(cache.iterdir())
    assert call(tool, monkeypatch, "--remove") == 0
    assert capsys.readouterr().out == f"no copy in {cache}\n"


def test_tool_deletes_a_copy_that_fails(
    tool: ModuleType,
    copy: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tool, "failure", lambda path: "adapter 0: refused")
    assert call(tool, monkeypatch) == 1
    assert capsys.readouterr().err == "error: the matrix units stay off, no copy kept: adapter 0: refused\n"
    assert not list(cache.iterdir())


def test_tool_refuses_another_library(
    tool: ModuleType,
    installed: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    installed.write_bytes(library(machine=183))
    assert call(tool, monkeypatch) == 1
    assert capsys.readouterr().err == f"error: {installed}: ELF machine: found 183, expected 62\n"
    assert not cache.exists()


def test_tool_refuses_another_system(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(matrix_units, "supported", lambda: False)
    assert call(tool, monkeypatch) == 1
    assert capsys.readouterr().err == "error: this tool works on Linux on x86-64 only\n"


DONE = [
    (0, "adapter 0: granted\n", "noise\n", None),
    (1, "adapter 0: granted\nerror: adapter 1: refused\n", "noise\n", "adapter 1: refused"),
    (1, "", "Traceback\nOSError: cannot open\n", "OSError: cannot open"),
    (1, "", "", "the check ended with exit code 1"),
    (-11, "", "noise\n", "the check was ended by signal 11"),
]


@pytest.mark.parametrize(("code", "out", "err", "reason"), DONE)
def test_reason_of_a_failed_check(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str, reason: str | None
) -> None:
    monkeypatch.setenv("NVGPU_FEATURES", "-cooperative-matrix")

    def run(command: list[str], env: dict[str, str], **options: object) -> subprocess.CompletedProcess[str]:
        assert env["WGPU_LIB_PATH"] == "copy.so"
        assert "NVGPU_FEATURES" not in env
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(subprocess, "run", run)
    assert tool.failure(Path("copy.so")) == reason


def test_check_that_hangs(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **options: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert tool.failure(Path("copy.so")) == "the check took more than 300 s"
