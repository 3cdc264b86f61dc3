"""`nvgpu train`, also installed as `nvgpu-train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nvgpu.cli.common import (
    Positive,
    adapter_option,
    command,
    json_option,
    loss_on_option,
    print_json,
    vram_option,
)
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.cli.sign_options import settings as sign_settings
from nvgpu.cli.sign_options import sign_options
from nvgpu.cli.watch_options import print_profile, watch_options
from nvgpu.cli.watch_options import settings as watch_settings
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import TextSource
from nvgpu.model.headers import Headers
from nvgpu.train import api
from nvgpu.train.options import COUNTS, MAX_RATE, PRECISIONS, TrainOptions
from nvgpu.train.run import StateOptions, TrainReport

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
    help="Calibration text: plain, or .jsonl with `text`, `messages` or `conversations`; repeatable. Weights share out --tokens.",
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
@loss_on_option
@click.option(
    "--seed", default=_D.seed, show_default=True, type=_count("seed"), help="Seed of the window order."
)
@sign_options
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
    "--state-replace",
    is_flag=True,
    help="Delete the saved state before the next one is written, where the disk has no room for two: a run that is killed "
    "(or a disk that fills) in between loses it.",
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
@watch_options
@adapter_option
@vram_option
@click.option(
    "--dry-run", is_flag=True, help="Only print what `nvgpu plan` says for these options; nothing is written."
)
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
    state_replace: bool,
    resume: Path | None,
    topk_cache: Path | None,
    as_json: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Distil STUDENT (compressed) against TEACHER (full precision), both CMF files.

    The scales h, l, g of every binary low-rank tensor and every RMSNorm gain are trained towards the teacher's top-k
    next-token distribution, and with --train-signs the signs too; the checkpoint with the best held-out KL is written to a
    copy of STUDENT.
    """
    signs, watching = sign_settings(options), watch_settings(options)
    settings = TrainOptions(**options, signs=signs)
    folder = state_dir or resume
    if dry_run:
        _plan(student, teacher, settings, adapter, vram, as_json)
        return
    state = StateOptions(folder, state_every, resume, state_replace) if folder else None
    sources = [TextSource.parse(spec) for spec in calib]
    progress = ConsoleProgress()
    try:
        report = api.train(
            student,
            teacher,
            sources,
            output,
            settings,
            adapter=adapter,
            vram=vram,
            state=state,
            topk_cache=topk_cache,
            watching=watching,
            progress=progress,
        )
    finally:
        progress.stop()
    if as_json:
        print_json(report.asdict())
        return
    print_table(
        f"trained {output}", [f"top-{settings.topk}, {report.options['precision']}", ""], _facts(report)
    )
    if report.profile is not None:
        print_profile(report.profile)


def _facts(report: TrainReport) -> list[list[str]]:
    """Rows of the table about a run."""
    rows = [
        ["held-out KL, start", f"{report.kl_start:.5f}"],
        [f"held-out KL, best (step {report.best_step})", f"{report.kl_best:.5f}"],
        ["held-out KL, written file", f"{report.kl_written:.5f}"],
        ["held-out perplexity, start", f"{report.ppl_start:.4g}"],
        ["held-out perplexity, written file", f"{report.ppl_written:.4g}"],
        [
            "steps (skipped)",
            f"{report.steps} ({report.skipped}){', then the run diverged' * report.diverged}",
        ],
    ]
    if report.unscored:
        rows.append(["batches without a row that counts", str(report.unscored)])
    if report.signs is not None:
        rows.append(["signs that differ from the start", f"{100 * report.signs['flipped_fraction']:.3f} %"])
    return rows


def _plan(
    student: Path,
    teacher: Path,
    settings: TrainOptions,
    adapter: str | None,
    vram: float | None,
    as_json: bool,
) -> None:
    from nvgpu.cli import plan  # which takes over the options above

    with CmfFile.open(teacher) as theirs, CmfFile.open(student) as ours:
        headers = Headers.of(theirs), Headers.of(ours)
    found = plan.planned(*headers, settings, adapter, vram, probe=False)
    plan.show(found, plan.reachable(headers[0]), as_json)
