"""`nvgpu convert` and `nvgpu export`: from and to a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import click

from nvgpu.cli.common import command, shard_bytes, shard_option
from nvgpu.cli.console import ConsoleProgress
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import ENCODED
from nvgpu.formats.hf import export_hf, import_hf

_IMPORT_DTYPES = tuple(dtype.label for dtype in ENCODED)
_EXPORT_DTYPES = ("f16", "bf16", "f32")


@command("convert")
@click.argument("hf_dir", type=Path)
@click.option("-o", "--output", required=True, type=Path, help="CMF file to write.")
@click.option(
    "--dtype",
    type=click.Choice(_IMPORT_DTYPES),
    help="Storage of matrices; q8_2f for those it cannot hold. Default: the checkpoint's. 1-D tensors are f16, "
    "f32 with --dtype f32.",
)
@shard_option
def convert(hf_dir: Path, output: Path, dtype: str | None, shard_max_gb: float | None) -> None:
    """Turn a Hugging Face checkpoint folder (Qwen3.5 family) into one self-contained CMF file."""
    progress = ConsoleProgress()
    try:
        report = import_hf(
            hf_dir, output, dtype=dtype, shard_bytes=shard_bytes(shard_max_gb), progress=progress
        )
    finally:
        progress.stop()
    for line in report.lines():
        progress.say(line)


@command("export")
@click.argument("model", type=Path)
@click.option("-o", "--output", required=True, type=Path, help="Folder to write; must not exist or be empty.")
@click.option(
    "--dtype",
    default="bf16",
    show_default=True,
    type=click.Choice(_EXPORT_DTYPES),
    help="Storage of every tensor.",
)
def export(model: Path, output: Path, dtype: str) -> None:
    """Write MODEL as a Hugging Face folder that transformers loads: dense weights, whatever they were stored as."""
    progress = ConsoleProgress()
    try:
        with CmfFile.open(model) as opened:
            export_hf(opened, output, dtype=dtype, progress=progress)
    finally:
        progress.stop()
    progress.say(f"wrote {output}")
