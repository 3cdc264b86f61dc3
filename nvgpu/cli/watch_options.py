"""Options about what a run tells: report, profile and trace; and the profile's tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nvgpu.cli.console import print_table
from nvgpu.train.report import PHASE_COLUMNS, host_sums, op_cells, phase_cells
from nvgpu.train.watch import WatchOptions

_OPTIONS = (
    click.option(
        "--report",
        type=Path,
        help="Folder for report.html, the event log log.jsonl, and TensorBoard files where tensorboardX is installed.",
    ),
    click.option(
        "--profile",
        is_flag=True,
        help="Also measure time, dispatches and bytes per phase and op; the steps themselves get slower.",
    ),
    click.option(
        "--trace",
        type=Path,
        help="File for a timeline of the first training steps, for Perfetto or Chrome; implies --profile.",
    ),
    click.option(
        "--trace-steps",
        type=click.IntRange(1, 1000),
        help=f"Training steps in the trace.  [default: {WatchOptions.trace_steps}]",
    ),
)


def watch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: adds the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings(options: dict[str, Any]) -> WatchOptions:
    """The settings, taken out of `options`.

    Raises:
        click.UsageError: `--trace-steps` without `--trace`.
    """
    given = {name: options.pop(name) for name in ("report", "profile", "trace", "trace_steps")}
    if given["trace_steps"] is not None and given["trace"] is None:
        raise click.UsageError("--trace-steps: needs --trace")
    return WatchOptions(**{name: value for name, value in given.items() if value is not None})


def print_profile(profile: dict[str, Any]) -> None:
    """The sums, and what each phase and op took, the slowest first."""
    device = sum(row["device_seconds"] for row in profile["phases"])
    print_table("profile", ["", ""], [list(row) for row in host_sums(profile)])
    print_table("phases", list(PHASE_COLUMNS), [phase_cells(row, device) for row in profile["phases"]])
    if profile["ops"]:
        print_table(
            "ops", ["op", "calls", "device s", "%"], [op_cells(row, device) for row in profile["ops"]]
        )
