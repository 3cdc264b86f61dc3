"""`nvgpu train`, also installed as `nvgpu-train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nvgpu.cli.common import (
    Positive,
    adapter_option,
    budget_bytes,
    command,
    json_option,
    print_json,
    vram_option,
)
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.formats.text import TextSource
from nvgpu.gpu import open_device
from nvgpu.train.options import COUNTS, MAX_RATE, PRECISIONS, TrainOptions
from nvgpu.train.run import StateOptions
from nvgpu.train.run import train as run_training

_D = TrainOptions()


def _count(name: str) -> click.IntRange:
    return click.IntRange(*COUNTS[name])


@command("train")
@click.argument("student", type=Path)
@click.argument("teacher", type=Path)
@click.option(
    "--calib",
    "calib",
    required=True,
    multiple=True,
    metavar="PATH[=WEIGHT]",
    help="Calibration text: plain, or .jsonl with a `text` or `messages` field; repeatable. Weights share out --tokens.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=Path,
    help="File to write: the student with trained scales and gains.",
)
@click.option(
    "--tokens",
    default=_D.tokens,
    show_default=True,
    type=_count("tokens"),
    help="Training tokens drawn from the sources, besides the held-out windows.",
)
@click.option(
    "--window",
    default=_D.window,
    show_default=True,
    type=_count("window"),
    help="Tokens a window; windows are independent.",
)
@click.option("--batch", default=_D.batch, show_default=True, type=_count("batch"), help="Windows a step.")
@click.option(
    "--epochs",
    default=_D.epochs,
    show_default=True,
    type=_count("epochs"),
    help="Passes over the training windows.",
)
@click.option(
    "--lr",
    default=_D.lr,
    show_default=True,
    type=Positive(MAX_RATE),
    help="Peak learning rate; relative to the magnitude for h, l and g.",
)
@click.option(
    "--topk",
    default=_D.topk,
    show_default=True,
    type=_count("topk"),
    help="Teacher probabilities kept per token.",
)
@click.option(
    "--eval-windows",
    default=_D.eval_windows,
    show_default=True,
    type=_count("eval_windows"),
    help="Held-out windows; rounded down to whole batches.",
)
@click.option(
    "--eval-every",
    default=_D.eval_every,
    show_default=True,
    type=_count("eval_every"),
    help="Steps between evaluations.",
)
@click.option(
    "--clip",
    default=_D.clip,
    show_default=True,
    type=Positive(MAX_RATE),
    help="Largest global gradient norm.",
)
@click.option(
    "--micro-batch",
    default=_D.micro_batch,
    show_default=True,
    type=_count("micro_batch"),
    help="Windows on the device at once; 0: the whole batch. Divides --batch.",
)
@click.option(
    "--precision",
    default=_D.precision,
    show_default=True,
    type=click.Choice(PRECISIONS),
    help="f32; mixed: GEMMs round weights and inputs to f16 and sum in f32; auto: mixed where matrix units run.",
)
@click.option(
    "--seed", default=_D.seed, show_default=True, type=_count("seed"), help="Seed of the window order."
)
@click.option(
    "--state-dir",
    type=Path,
    help="Folder for the run's state; Ctrl-C then finishes the step, saves, and exits with 130.",
)
@click.option(
    "--state-every",
    default=50,
    show_default=True,
    type=click.IntRange(min=1),
    help="Steps between saved states.",
)
@click.option(
    "--resume",
    type=Path,
    help="Go on from the state in this folder, and save there unless --state-dir is given. Options and data must be the same.",
)
@click.option(
    "--topk-cache",
    type=Path,
    help="File that keeps the teacher's targets: made where there is none, else used; a teacher pass cut off goes on.",
)
@click.option(
    "--profile", is_flag=True, help="Also print device time per op; the steps themselves get slower."
)
@adapter_option
@vram_option
@json_option
def train(
    student: Path,
    teacher: Path,
    calib: tuple[str, ...],
    output: Path,
    adapter: str | None,
    vram: float | None,
    state_dir: Path | None,
    state_every: int,
    resume: Path | None,
    topk_cache: Path | None,
    profile: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Distil STUDENT (compressed) against TEACHER (full precision), both CMF files.

    The scales h, l, g of every binary low-rank tensor and every RMSNorm gain are trained towards the teacher's top-k
    next-token distribution; the checkpoint with the best held-out KL is written to a copy of STUDENT.
    """
    settings = TrainOptions(**options)
    folder = state_dir or resume
    state = StateOptions(folder, state_every, resume) if folder else None
    sources = [TextSource.parse(spec) for spec in calib]
    progress = ConsoleProgress()
    try:
        device = open_device(adapter, budget=budget_bytes(vram))
        report = run_training(
            device, student, teacher, sources, output, settings, progress, state, topk_cache, profile
        )
    finally:
        progress.stop()
    if as_json:
        print_json(report.asdict())
        return
    rows = [
        ["held-out KL, start", f"{report.kl_start:.5f}"],
        [f"held-out KL, best (step {report.best_step})", f"{report.kl_best:.5f}"],
        ["held-out KL, written file", f"{report.kl_written:.5f}"],
        ["held-out perplexity, written file", f"{report.ppl_written:.4g}"],
        [
            "steps (skipped)",
            f"{report.steps} ({report.skipped}){', then the run diverged' * report.diverged}",
        ],
    ]
    print_table(f"trained {output}", [f"top-{settings.topk}, {report.options['precision']}", ""], rows)
    if report.profile is not None:
        total = sum(row["seconds"] for row in report.profile)
        shown = [
            [row["op"], str(row["calls"]), f"{row['seconds']:.3f}", f"{100 * row['seconds'] / total:.1f}"]
            for row in report.profile
        ]
        print_table("device time of the steps and evaluations", ["op", "calls", "s", "%"], shown)
