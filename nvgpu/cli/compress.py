"""`nvgpu compress`: body linears become binary low-rank."""

from __future__ import annotations

from pathlib import Path

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
from nvgpu.encode.calibration import Calibration, compress_calibrated
from nvgpu.encode.compress import CompressOptions, CompressReport
from nvgpu.encode.encoders import AUTO, METHODS
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import ENCODED, Dtype
from nvgpu.formats.text import TextSource
from nvgpu.gpu import open_device

_C = Calibration(sources=())


@command("compress")
@click.argument("teacher", type=Path)
@click.option("-o", "--output", required=True, type=Path, help="CMF file to write.")
@click.option(
    "--bpw",
    required=True,
    type=Positive(),
    help="Bits per weight of each body linear, scales included; the achieved value is reported.",
)
@click.option(
    "--method",
    default=AUTO,
    show_default=True,
    type=click.Choice(METHODS),
    help="Start of the encoder. svid: plain Dual-SVID, nothing refined. svid-refit, itq, admm "
    "end with refits of scales and descent on signs. auto: admm.",
)
@click.option(
    "--paths",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "1", "2"]),
    help="Binary low-rank paths a tensor; 2 share the budget, auto takes the better for each tensor.",
)
@click.option(
    "--calib",
    multiple=True,
    metavar="PATH[=WEIGHT]",
    help="Calibration text, as for train; repeatable. Errors are then weighed by the inputs that each tensor sees. Without it "
    "all inputs count alike, and the student starts far worse.",
)
@click.option(
    "--fit-tokens",
    default=_C.fit_tokens,
    show_default=True,
    type=click.IntRange(1),
    help="Calibration tokens that the encoders see.",
)
@click.option(
    "--sel-tokens",
    default=_C.sel_tokens,
    show_default=True,
    type=click.IntRange(1),
    help="Further tokens that judge what they made.",
)
@click.option(
    "--window",
    default=_C.window,
    show_default=True,
    type=click.IntRange(2),
    help="Tokens a calibration window.",
)
@click.option(
    "--refine-signs/--no-refine-signs",
    default=True,
    show_default=True,
    help="Descend on single signs after the start; svid never does.",
)
@click.option(
    "--embed-dtype",
    type=click.Choice([dtype.label for dtype in ENCODED if dtype != Dtype.F32]),
    help="Storage of embeddings and head. Default: f16.",
)
@click.option("--seed", default=42, show_default=True, type=click.IntRange(0), help="Of windows and starts.")
@adapter_option
@vram_option
@json_option
def compress(
    teacher: Path,
    output: Path,
    bpw: float,
    method: str,
    paths: str,
    calib: tuple[str, ...],
    fit_tokens: int,
    sel_tokens: int,
    window: int,
    refine_signs: bool,
    embed_dtype: str | None,
    seed: int,
    adapter: str | None,
    vram: float | None,
    as_json: bool,
) -> None:
    """Compress TEACHER: every body linear becomes binary low-rank; small tensors, embeddings and head stay f16.

    A run that was stopped goes on from `OUTPUT.partial/` when it is started again with the same inputs and options.
    """
    options = CompressOptions(
        bpw, method, None if paths == "auto" else int(paths), embed_dtype, refine_signs, seed
    )
    sources = tuple(TextSource.parse(spec) for spec in calib)
    calibration = Calibration(sources, fit_tokens, sel_tokens, window) if sources else None
    progress = ConsoleProgress()
    try:
        with CmfFile.open(teacher) as opened:
            report = compress_calibrated(
                opened,
                output,
                options,
                calibration,
                progress,
                device=lambda: open_device(adapter, budget=budget_bytes(vram)),
            )
    finally:
        progress.stop()
    if as_json:
        print_json(report.asdict())
    else:
        _print(report, output, bpw)


def _print(report: CompressReport, output: Path, bpw: float) -> None:
    weighted = report.mean_sel_error is not None
    rows = [
        [
            t.name,
            "x".join(map(str, t.shape)),
            str(t.rank),
            str(t.paths),
            f"{t.bpw_target:.3f}",
            f"{t.bpw:.3f}",
            f"{t.relative_error:.4f}",
            *([f"{t.fit_error:.4f}", f"{t.sel_error:.4f}"] if weighted else []),
            f"{t.seconds:.1f}",
        ]
        for t in report.tensors
    ]
    errors = ["rel. error", *(["FIT error", "SEL error"] if weighted else [])]
    print_table(
        f"{report.method}, {bpw} bits per weight asked for",
        ["tensor", "shape", "rank", "paths", "target", "bpw", *errors, "s"],
        rows,
    )
    print_table(
        str(output),
        ["", ""],
        [
            ["bits per weight, body", f"{report.body_bpw:.4f}"],
            ["bits per weight, whole file", f"{report.file_bpw:.4f}"],
            ["mean relative error", f"{report.mean_relative_error:.4f}"],
            *([["mean weighted error, SEL", f"{report.mean_sel_error:.4f}"]] if weighted else []),
            ["file", f"{report.file_bytes} bytes"],
        ],
    )
