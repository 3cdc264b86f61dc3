"""Checks before any device work: nothing long starts that cannot end well."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from nvgpu.errors import InputError, OutputError
from nvgpu.formats.files import check_target, output_errors


def check_output(output: Path, inputs: Iterable[Path], needed: int) -> None:
    """A file can appear at `output`, it is none of `inputs`, and `needed` bytes are free.

    Raises:
        InputError, OutputError: as `check_target`, and where the disk is too full.
    """
    check_target(output, inputs)
    free = shutil.disk_usage(output.parent).free
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
            f"{what} takes {needed} bytes of host memory, {available} are available; use --topk-cache, fewer --tokens or a "
            "smaller --topk"
        )


def check_state(folder: Path, resume: Path | None) -> None:
    """The folder of the state can be written (it is made here), and the one to go on from exists.

    Raises:
        InputError: `resume` is no folder.
        OutputError: `folder` cannot be made or written.
    """
    if resume is not None and not resume.is_dir():
        raise InputError(f"--resume {resume}: no such folder")
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"--state-dir {folder}: not writable")
