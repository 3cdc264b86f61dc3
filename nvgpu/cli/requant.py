"""`nvgpu requant`: matrices of a model file in another storage type."""

from __future__ import annotations

from pathlib import Path

import click

from nvgpu.cli.common import command, json_option, print_json, shard_bytes, shard_option
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.encode.requant import RequantReport
from nvgpu.encode.requant import requant as run_requant
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import ENCODED, FALLBACK, dtype_by_name

_NAMES_SHOWN = 4


@command("requant")
@click.argument("model", type=Path)
@click.option("-o", "--output", required=True, type=Path, help="CMF file to write.")
@click.option(
    "--dtype",
    required=True,
    type=click.Choice([dtype.label for dtype in ENCODED]),
    help="Storage of the matrices; q8_2f for those whose shape it cannot hold.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATTERN",
    help="Tensors to store anew, such as '*.mlp.*' or '*embed_tokens*' (repeatable). Default: every matrix of the "
    "body but blr and in_proj_a/b; embeddings and head only where a pattern matches them.",
)
@shard_option
@json_option
def requant(
    model: Path, output: Path, dtype: str, only: tuple[str, ...], shard_max_gb: float | None, as_json: bool
) -> None:
    """Store matrices of MODEL in another type; everything else keeps its bytes."""
    progress = ConsoleProgress()
    try:
        with CmfFile.open(model) as opened:
            report = run_requant(
                opened,
                output,
                dtype=dtype_by_name(dtype),
                only=only,
                shard_bytes=shard_bytes(shard_max_gb),
                progress=progress,
            )
    finally:
        progress.stop()
    for what, names in (
        (f"stored as {FALLBACK.label}, which takes their shape", report.fell_back),
        (f"left as they are, since {dtype} holds matrices", report.left),
    ):
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            progress.say(f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}")
    if as_json:
        print_json(_as_dict(report))
        return
    errors = [row.relative_error for row in report.changed] or [0.0]
    rows = [
        ["tensors stored anew", str(len(report.changed))],
        ["mean relative error", f"{sum(errors) / len(errors):.5f}"],
        ["largest relative error", f"{max(errors):.5f}"],
        ["bytes before", str(report.bytes_before)],
        ["bytes after", str(report.bytes_after)],
        ["files", str(len(report.outputs))],
    ]
    print_table(str(report.outputs[0]), ["", ""], rows)


def _as_dict(report: RequantReport) -> dict[str, object]:
    return {
        "files": [path.name for path in report.outputs],
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "fell_back": report.fell_back,
        "left": report.left,
        "changed": [
            {
                "name": row.name,
                "before": row.before.label,
                "after": row.after.label,
                "bytes_before": row.bytes_before,
                "bytes_after": row.bytes_after,
                "relative_error": row.relative_error,
            }
            for row in report.changed
        ],
    }
