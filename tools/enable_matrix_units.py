#!/usr/bin/env python3
"""Lets nvgpu use the matrix units (`cooperative-matrix`) on Linux x86-64: makes, checks and removes the library copy.

wgpu's native library lists the feature but refuses it as experimental. This tool puts a copy of the library, in which
no feature counts as experimental, into the user's cache, and keeps it only if a device with the feature opens and its
matrix units compute right. nvgpu then loads the copy; NVGPU_MATRIX_UNITS=0 turns that off. The installed library is
not touched, and a copy never serves another version of it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nvgpu.errors import InputError, NvgpuError  # noqa: E402
from nvgpu.gpu import list_adapters, matrix_units, open_device  # noqa: E402

FEATURE = "cooperative-matrix"
TIMEOUT = 300  # seconds; a driver may hang instead of failing
SWITCHES = ("NVGPU_FEATURES", "NVGPU_MATRIX_UNITS")  # may switch off what is to be checked


def main() -> int:
    options = arguments()
    try:
        if not matrix_units.supported():
            raise InputError("this tool works on Linux on x86-64 only")
        if options.check:
            return check()
        return remove() if options.remove else status() if options.status else enable()
    except (NvgpuError, OSError) as e:
        # the check's reason goes apart from what drivers print
        print(f"error: {e}", file=sys.stdout if options.check else sys.stderr)
        return 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--remove", action="store_true", help="delete every copy")
    action.add_argument("--status", action="store_true", help="print what is there and whether it is used")
    action.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # the subprocess of `failure`
    return parser.parse_args()


def enable() -> int:
    """Make the copy; it gets its final name, by which nvgpu finds it, only after the check."""
    installed = matrix_units.installed_library()
    library = installed.read_bytes()
    copy = matrix_units.cache_path(matrix_units.wgpu_version(), library)
    data = matrix_units.patched(library, str(installed))
    copy.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".new-", suffix=".so", dir=copy.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        reason = failure(temporary)
        if reason is None:
            temporary.replace(copy)
    finally:
        temporary.unlink(missing_ok=True)
    if reason is not None:
        copy.unlink(missing_ok=True)  # one of an earlier run would fail alike
        print(f"error: the matrix units stay off, no copy kept: {reason}", file=sys.stderr)
        return 1
    print(f"made {copy}")
    print(use())
    return 0


def failure(copy: Path) -> str | None:
    """Why `copy` does not do, from a process of its own that loads it; None if it does."""
    environment = {k: v for k, v in os.environ.items() if k not in SWITCHES} | {"WGPU_LIB_PATH": str(copy)}
    command = [sys.executable, str(Path(__file__).resolve()), "--check"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"the check took more than {TIMEOUT} s"
    if done.returncode == 0:
        print(done.stdout, end="")
        return None
    if done.returncode < 0:
        return f"the check was ended by signal {-done.returncode}"
    said = [
        line for line in done.stdout.splitlines() if line.startswith("error: ")
    ] or done.stderr.splitlines()
    return said[-1].removeprefix("error: ") if said else f"the check ended with exit code {done.returncode}"


def check() -> int:
    """In the subprocess: every adapter that grants the feature computes right, and at least one does grant it.

    Raises:
        NvgpuError: what is wrong.
    """
    from nvgpu.gpu.selftest import matrix_units_self_test

    listed = [a for a in list_adapters() if FEATURE in a.features]
    if not listed:
        raise InputError(f"no adapter lists {FEATURE}")
    refusals = []
    for adapter in listed:
        device = open_device(str(adapter.index))
        if FEATURE not in device.features:
            refusals.append(f"adapter {adapter.label}: {device.refused.get(FEATURE, 'not granted')}")
            continue
        reason = matrix_units_self_test(device)
        if reason is not None:
            raise InputError(f"adapter {adapter.label}: {reason}")
        print(f"adapter {adapter.label}: {FEATURE} granted, self-test passed")
        device.close()
    if len(refusals) == len(listed):
        raise InputError("; ".join(refusals))
    return 0


def remove() -> int:
    found = copies()
    for path in found:
        path.unlink()
        print(f"deleted {path}")
    if not found:
        print(f"no copy in {matrix_units.cache_folder()}")
    return 0


def status() -> int:
    installed = matrix_units.installed_library()
    current = matrix_units.cache_path(matrix_units.wgpu_version(), installed.read_bytes())
    print(f"installed: {installed} (wgpu {matrix_units.wgpu_version()})")
    found = copies()
    for path in found:
        print(f"{'copy' if path == current else 'copy of another version'}: {path}")
    print(use() if current in found else "no copy of the installed library; nvgpu uses that itself")
    return 0


def use() -> str:
    variable = matrix_units.kept_from_use()
    return (
        "nvgpu uses the copy" if variable is None else f"nvgpu does not use the copy while {variable} is set"
    )


def copies() -> list[Path]:
    """All copies, also what an interrupted run left."""
    return sorted(matrix_units.cache_folder().glob("*.so"))


if __name__ == "__main__":
    sys.exit(main())
