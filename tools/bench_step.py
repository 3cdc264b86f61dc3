#!/usr/bin/env python3
"""Time whole distillation steps on a synthetic model of Qwen3.5-0.8B shape, beside the same step in PyTorch.

    python tools/bench_step.py                     # our step
    python tools/bench_step.py --peer python3      # and PyTorch's, run by that interpreter (torch and transformers)
    python tools/bench_step.py --train-signs       # and a step that trains signs too
    python tools/bench_step.py --profile           # device time per kernel instead of the table
    python tools/bench_step.py --tiny              # a small model, to see that it works

The targets are random and given, as for the peer: both sides time forward, backward, clipping and the update.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))
from peer import run_peer
from synthetic import Shape, write_model

from nvgpu.formats.cmf import CmfFile
from nvgpu.gpu import Device, Profiler, open_device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.progress import Silent
from nvgpu.train.loop import Distillation
from nvgpu.train.options import TrainOptions
from nvgpu.train.sign_options import SignOptions
from nvgpu.train.targets import Targets
from nvgpu.train.windows import Windows, Xorshift64

_TINY = Shape(
    layers=4, hidden=128, intermediate=256, vocab=4096, heads=2, head_dim=64, key_heads=2, value_heads=4
)


@click.command()
@click.option("--peer", metavar="PYTHON", help="Interpreter that has torch and transformers.")
@click.option(
    "--train-signs", is_flag=True, help="Time a step that trains signs too, and its cost over ours."
)
@click.option("--profile", is_flag=True, help="Print device time per kernel; the step itself is slower then.")
@click.option("--tiny", is_flag=True, help="A model of a million weights.")
@click.option("--bpw", default=1.0, show_default=True)
@click.option("--steps", default=10, show_default=True, help="Timed steps.")
@click.option("--precision", default="auto", show_default=True, type=click.Choice(["auto", "f32", "mixed"]))
@click.option("--json", "as_json", is_flag=True)
def main(
    peer: str | None,
    train_signs: bool,
    profile: bool,
    tiny: bool,
    bpw: float,
    steps: int,
    precision: str,
    as_json: bool,
) -> None:
    """Time distillation steps of a synthetic student."""
    shape = _TINY if tiny else Shape()
    device = open_device()
    options = TrainOptions(batch=2 if tiny else 8, window=64 if tiny else 512, precision=precision)
    options = options.resolved(device.matrix_units)
    kinds = {"ours": options}
    if train_signs:
        kinds["signs"] = replace(options, signs=SignOptions())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "student.cmf"
        write_model(path, shape, bpw=bpw)
        found = {name: measure(device, path, shape, o, steps, profile) for name, o in kinds.items()}
    if profile:
        for numbers in found.values():
            _print_profile(numbers.pop("profile"), steps)
    if peer:
        found["peer"] = run_peer(peer, "step", *(["--tiny"] if tiny else []))
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print_table(found, options.precision)


def measure(
    device: Device, path: Path, shape: Shape, options: TrainOptions, steps: int, profile: bool
) -> dict[str, Any]:
    """Seconds per step (median), tokens/s, the host's share, and peak device memory as we account it."""
    device.memory.peak = device.memory.live
    rows = options.batch * options.window
    windows, targets = _data(shape, options)
    profiler = Profiler(device) if profile else None
    mixed = options.precision == "mixed"
    signs = options.signs.spec(1) if options.signs else None
    with CmfFile.open(path) as model:
        net = Net(device, model, NetOptions(options.window, trainable=True, mixed=mixed, signs=signs))
        executor = Executor(net, profiler=profiler)
        loop = Distillation(executor, windows, targets, options, Silent())
        for _ in range(3):
            loop.step(0)
        if profiler is not None:
            profiler.seconds.clear()
            profiler.calls.clear()
        seconds, host = [], []
        for _ in range(steps):
            start, waited = time.perf_counter(), device.waited
            loop.step(0)
            seconds.append(time.perf_counter() - start)
            host.append(seconds[-1] - (device.waited - waited))
        result: dict[str, Any] = {
            "adapter": device.adapter.label,
            "matrix_units": device.matrix_units,
            "seconds": statistics.median(seconds),
            "host_share": statistics.median(host) / statistics.median(seconds),
            "tokens_per_s": rows / statistics.median(seconds),
            "peak_bytes": device.memory.peak,
            "loss_first": loop.state.losses[0],
            "loss_last": loop.state.losses[-1],
            "skipped": loop.state.skipped,
            "dispatches": executor.rec.dispatches / (steps + 3),
            "submissions": executor.rec.submissions / (steps + 3),
        }
        if profiler is not None:
            result["profile"] = profiler.table()
        executor.free()
        net.free()
    return result


def _data(shape: Shape, options: TrainOptions) -> tuple[Windows, Targets]:
    """One random training batch and its targets."""
    rng = np.random.default_rng(1)
    rows = options.batch * options.window
    ids = rng.integers(0, shape.vocab, (1, rows)).astype(np.uint32)
    top = np.argsort(rng.random((rows, 4096)), axis=1)[:, : options.topk] * (shape.vocab // 4096)
    p = rng.random((rows, options.topk)).astype(np.float32)
    targets = Targets(top[None].astype(np.uint32), (p / p.sum(1, keepdims=True))[None].astype(np.float32))
    return Windows(ids, ids[:0], Xorshift64(1)), targets


def _print_profile(table: list[tuple[str, int, float]], steps: int) -> None:
    for label, calls, seconds in table:
        click.echo(f"{1e3 * seconds / steps:9.3f} ms {calls / steps:6.1f} calls  {label}")
    click.echo(f"{1e3 * sum(seconds for _, _, seconds in table) / steps:9.3f} ms in all")


def _print_table(found: dict[str, dict[str, Any]], precision: str) -> None:
    ours = found["ours"]
    names = {"ours": f"nvgpu, {precision}", "signs": "nvgpu, signs too", "peer": "PyTorch, bf16"}
    click.echo(f"adapter {ours['adapter']}; matrix units {'on' if ours['matrix_units'] else 'off'}")
    click.echo(f"{'':16} {'s/step':>8} {'tokens/s':>9} {'peak GiB':>9} {'loss':>16}")
    for name, r in found.items():
        loss = f"{r['loss_first']:.4f} {r['loss_last']:.4f}"
        peak = (r.get("peak_bytes") or 0) / 2**30
        click.echo(f"{names[name]:16} {r['seconds']:8.4f} {r['tokens_per_s']:9.0f} {peak:9.2f} {loss:>16}")
    click.echo(
        f"host share {100 * ours['host_share']:.1f} %, {ours['dispatches']:.0f} dispatches, "
        f"{ours['submissions']:.0f} submissions a step, {ours['skipped']} steps skipped"
    )
    if "signs" in found:
        click.echo(
            f"a step that trains signs takes {found['signs']['seconds'] / ours['seconds']:.2f} times ours"
        )
    if "peer" in found:
        ratio = ours["tokens_per_s"] / found["peer"]["tokens_per_s"]
        click.echo(f"ratio {ratio:.2f} (ours over PyTorch's tokens/s)")


if __name__ == "__main__":
    main()
