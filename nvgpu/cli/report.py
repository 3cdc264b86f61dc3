"""`nvgpu report`: the page of a run whose log is there, made anew."""

from __future__ import annotations

from pathlib import Path

import click

from nvgpu.cli.common import command
from nvgpu.errors import InputError
from nvgpu.train.report import LOG, write


@command("report")
@click.argument("folder", type=Path)
def report(folder: Path) -> None:
    """Make report.html in FOLDER from the log.jsonl there.

    For a run that is still going on or was killed; `nvgpu train --report FOLDER` makes the page itself when it ends.
    """
    if not (folder / LOG).is_file():
        raise InputError(f"{folder / LOG}: no such file, expected the log of a run")
    click.echo(write(folder))
