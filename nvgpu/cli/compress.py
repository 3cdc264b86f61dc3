"""`nvgpu compress`: body linears become binary low-rank."""

from __future__ import annotations

from pathlib import Path

import click

from nvgpu.cli.common import Positive, command, json_option, print_json
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.encode.compress import compress as run_compression
from nvgpu.encode.encoders import DEFAULT_METHOD, ENCODERS
from nvgpu.formats.cmf import CmfFile


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
    default=DEFAULT_METHOD,
    show_default=True,
    type=click.Choice(list(ENCODERS)),
    help="svid: plain Dual-SVID. svid-refit: with exact least-squares refits of the scales.",
)
@click.option(
    "--paths",
    default=2,
    show_default=True,
    type=click.IntRange(1, 2),
    help="Binary low-rank paths a tensor; 2 share the budget.",
)
@click.option(
    "--embed-dtype",
    type=click.Choice(["f16", "bf16", "q8_row", "q8_2f"]),
    help="Storage of embeddings and head. Default: f16.",
)
@json_option
def compress(
    teacher: Path, output: Path, bpw: float, method: str, paths: int, embed_dtype: str | None, as_json: bool
) -> None:
    """Compress TEACHER: every body linear becomes binary low-rank; small tensors, embeddings and head stay f16."""
    progress = ConsoleProgress()
    with CmfFile.open(teacher) as opened:
        try:
            report = run_compression(
                opened,
                output,
                bpw=bpw,
                method=method,
                paths=paths,
                embed_dtype=embed_dtype,
                progress=progress,
            )
        finally:
            progress.stop()
    if as_json:
        print_json(report.asdict())
        return
    rows = [
        [
            t.name,
            "x".join(map(str, t.shape)),
            str(t.rank),
            str(t.paths),
            f"{t.bpw_target:.3f}",
            f"{t.bpw:.3f}",
            f"{t.relative_error:.4f}",
            f"{t.seconds:.1f}",
        ]
        for t in report.tensors
    ]
    print_table(
        f"{method}, {bpw} bits per weight asked for",
        ["tensor", "shape", "rank", "paths", "target", "bpw", "rel. error", "s"],
        rows,
    )
    print_table(
        str(output),
        ["", ""],
        [
            ["bits per weight, body", f"{report.body_bpw:.4f}"],
            ["bits per weight, whole file", f"{report.file_bpw:.4f}"],
            ["file", f"{report.file_bytes} bytes"],
        ],
    )
