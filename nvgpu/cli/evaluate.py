"""`nvgpu eval`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from nvgpu.cli.common import (
    adapter_option,
    command,
    json_option,
    loss_on_option,
    print_json,
    vram_option,
)
from nvgpu.cli.console import ConsoleProgress, print_table
from nvgpu.train import api
from nvgpu.train.options import MAX_TOPK, PRECISIONS


@command("eval")
@click.argument("model", type=Path)
@click.option(
    "--text", required=True, type=Path, help="Text to score: plain text or .jsonl, tokenised once as a whole."
)
@click.option("--teacher", type=Path, help="Also report KL(teacher ‖ model) over the full vocabulary.")
@click.option(
    "--window",
    default=512,
    show_default=True,
    type=click.IntRange(2),
    help="Tokens a window; each is its own context.",
)
@click.option(
    "--max-windows", type=click.IntRange(1), help="Score at most so many windows. Default: all whole ones."
)
@click.option(
    "--topk",
    type=click.IntRange(1, MAX_TOPK),
    help="With --teacher: also the KL to its top-k distribution, renormalised.",
)
@click.option(
    "--precision",
    default="f32",
    show_default=True,
    type=click.Choice(PRECISIONS[1:]),
    help="f32, or mixed: GEMMs round weights (and inputs, where matrix units run) to f16.",
)
@loss_on_option
@adapter_option
@vram_option
@json_option
def evaluate(
    model: Path,
    text: Path,
    teacher: Path | None,
    window: int,
    max_windows: int | None,
    topk: int | None,
    precision: str,
    loss_on: str,
    adapter: str | None,
    vram: float | None,
    as_json: bool,
) -> None:
    """Token-level perplexity of MODEL on a text and, with a teacher, its KL divergence.

    The text is cut into whole windows from its start; each scores its T-1 next tokens. NLL is in nats per scored token.
    """
    progress = ConsoleProgress()
    try:
        result = api.evaluate(
            model,
            text,
            teacher=teacher,
            window=window,
            max_windows=max_windows,
            topk=topk,
            precision=precision,
            loss_on=loss_on,
            adapter=adapter,
            vram=vram,
            progress=progress,
        )
    finally:
        progress.stop()
    if as_json:
        print_json({k: v for k, v in asdict(result).items() if v is not None})
        return
    rows = [
        ["negative log-likelihood (nats/token)", f"{result.nll:.5f}"],
        ["perplexity (token level)", f"{result.ppl:.4f}"],
    ]
    if result.kl is not None:
        rows.append(["KL to the teacher (full vocabulary)", f"{result.kl:.5f}"])
    if result.kl_topk is not None:
        rows.append([f"KL to the teacher's top-{result.topk}", f"{result.kl_topk:.5f}"])
    rows.append(["scored tokens", f"{result.tokens} ({result.windows} windows of {result.window})"])
    print_table(str(model), ["", text.name], rows)
