"""Checks before any device work: nothing long starts that cannot end well."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from nvgpu.errors import InputError, OutputError


def check_output(output: Path, inputs: Iterable[Path], needed: int) -> None:
    """The output can be written next to nothing it would destroy, and `needed` bytes are free.

    Raises:
        InputError: the output is one of the inputs.
        OutputError: its folder is missing or not writable, it is a folder, or the disk is too full.
    """
    for path in inputs:
        if output.exists() and path.exists() and os.path.samefile(output, path):
            raise InputError(f"output {output} is the input {path}; expected another path")
    folder = output.parent
    if not folder.is_dir():
        raise OutputError(f"output {output}: folder {folder} does not exist")
    if output.is_dir():
        raise OutputError(f"output {output} is a folder, expected a file path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"output {output}: folder {folder} is not writable")
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OutputError(f"output {output}: needs {needed} bytes, {free} are free")


def check_host_memory(needed: int, what: str) -> None:
    """`needed` bytes fit what the system says is available, where it says so.

    Raises:
        InputError: they do not.
    """
    try:
        with open("/proc/meminfo", encoding="ascii") as f:
            fields = dict(line.split(":", 1) for line in f)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return
    if needed > available:
        raise InputError(
            f"{what} takes {needed} bytes of host memory, {available} are available; use fewer --tokens or a smaller --topk"
        )
