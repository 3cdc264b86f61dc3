"""`nvgpu verify` and `nvgpu sign`: whether a model file is sound, and whose it is."""

from __future__ import annotations

from pathlib import Path

import click

from nvgpu.cli.common import command, json_option, print_json
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.signature import sign as write_signature
from nvgpu.model.verify import verify as run_verification


@command("verify")
@click.argument("model", type=Path)
@click.option(
    "--pubkey",
    type=Path,
    metavar="PEM",
    help="Also require MODEL.sig to be a signature by this Ed25519 public key.",
)
@json_option
@click.pass_context
def verify(ctx: click.Context, model: Path, pubkey: Path | None, as_json: bool) -> None:
    """Check MODEL in full: structure, hashes, finite values, architecture, tokenizer, masks and skills.

    Any shard stands for its set. Every finding is listed; the exit code is 1 with any, else 0.
    """
    progress = ConsoleProgress()
    try:
        result = run_verification(model, pubkey, progress)
    finally:
        progress.stop()
    if as_json:
        print_json(
            {
                "files": [path.name for path in result.files],
                "ok": not result.findings,
                "tensors": result.tensors,
                "bytes": result.nbytes,
                "signature": result.signature,
                "skipped": result.skipped,
                "findings": [{"check": check, "message": text} for check, text in result.findings],
            }
        )
    else:
        if result.findings:
            print_table("findings", ["check", "what is wrong"], [list(row) for row in result.findings])
        outcome = f"{len(result.findings)} findings" if result.findings else "sound"
        rows = [
            ["outcome", outcome],
            ["files", str(len(result.files))],
            ["tensors", str(result.tensors)],
            ["bytes", str(result.nbytes)],
            ["signature", result.signature],
            *(["not checked", what] for what in result.skipped),
        ]
        print_table(str(model), ["", ""], rows)
    if result.findings:
        ctx.exit(1)


@command("sign")
@click.argument("model", type=Path)
@click.option(
    "--key",
    required=True,
    type=Path,
    metavar="PEM",
    help="Ed25519 private key, unencrypted PEM (openssl genpkey).",
)
def sign(model: Path, key: Path) -> None:
    """Write MODEL.sig, an Ed25519 signature over the SHA-256 of MODEL; one beside every shard of a set."""
    with CmfFile.open(model) as opened:
        paths = opened.paths
    for path in paths:
        click.echo(f"wrote {write_signature(path, key)}", err=True)
