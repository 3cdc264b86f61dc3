#!/usr/bin/env python3
"""Check and time every op of the table at real model sizes, beside PyTorch where it has the same work.

    python tools/bench_ops.py                    # parity, then device time of each kernel the device would choose
    python tools/bench_ops.py --peer python3     # and PyTorch's, run by that interpreter
    python tools/bench_ops.py --only matmul      # ops whose name holds this
    python tools/bench_ops.py --quick            # the small cases instead, to see that it works

Times are device times from timestamp queries: the median over `--repeats` dispatches, after a warm-up. The share of the
copy bandwidth counts every input and output once; the copy is measured first, on the same device.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))
from peer import run_peer

from nvgpu.errors import NvgpuError
from nvgpu.gpu import Device, Profiler, Recorder, open_device
from nvgpu.ops import OPS
from nvgpu.ops.parity import check, inputs
from nvgpu.ops.table import Case, Dims, Kernel, Op, evaluate

_COPY_BYTES = 512 << 20
_PEERS = {  # op -> the item of tools/bench/peer_torch.py with the same work
    "matmul_nt": "gemm f32 y {N} {M}x{K}",
    "matmul_nn": "gemm f32 dx {N} {M}x{K}",
    "matmul_nt_f16": "gemm bf16 y {N} {M}x{K}",
    "matmul_nn_f16": "gemm bf16 dx {N} {M}x{K}",
    "attention_fwd": "attention {T}",
    "adam": "adamw",
}


@dataclass(frozen=True)
class Timed:
    """Device seconds of one dispatch, and the work in it."""

    op: str
    kernel: str
    case: str
    seconds: float
    flops: float
    nbytes: float
    tolerance_used: float
    peer_seconds: float | None


@click.command()
@click.option("--peer", metavar="PYTHON", help="Interpreter that has torch and transformers.")
@click.option("--only", default="", help="Part of the names of the ops to run.")
@click.option("--quick", is_flag=True, help="The small cases, one an op.")
@click.option("--every-kernel", is_flag=True, help="Also the kernels that the device would not choose.")
@click.option("--repeats", default=20, show_default=True, help="Timed dispatches.")
@click.option("--json", "as_json", is_flag=True)
def main(peer: str | None, only: str, quick: bool, every_kernel: bool, repeats: int, as_json: bool) -> None:
    """Check and time ops; each kernel that some precision chooses."""
    device = open_device()
    theirs = run_peer(peer, "ops")["items"] if peer else {}
    bandwidth = copy_bandwidth(device)
    results = []
    for op, case, kernel, precision in chosen(device, only, quick, every_kernel):
        try:
            used = check(device, op, kernel, case).used
            results.append(timed(device, op, case, kernel, precision, repeats, used, theirs))
        except NvgpuError as e:
            click.echo(f"{op.name}.{kernel.name} [{case.name}]: {e}", err=True)
    if as_json:
        rows = [vars(r) for r in results]
        click.echo(
            json.dumps({"adapter": device.adapter.label, "copy_gb_per_s": bandwidth / 1e9, "ops": rows})
        )
        return
    click.echo(f"adapter {device.adapter.label}; copy {bandwidth / 1e9:.0f} GB/s")
    click.echo(f"{'us':>10} {'TFLOP/s':>8} {'of copy':>8} {'of peer':>8} {'of tol.':>8}  op.kernel [case]")
    for r in sorted(results, key=lambda r: r.op):
        share = f"{r.nbytes / r.seconds / bandwidth:8.2f}"
        ratio = f"{r.peer_seconds / r.seconds:8.2f}" if r.peer_seconds else " " * 8
        rates = f"{1e6 * r.seconds:10.1f} {r.flops / r.seconds / 1e12:8.2f} {share} {ratio} {r.tolerance_used:8.2f}"
        click.echo(f"{rates}  {r.op}.{r.kernel} [{r.case}]")


def chosen(device: Device, only: str, quick: bool, every: bool) -> Iterator[tuple[Op, Case, Kernel, str]]:
    """The ops' model-size cases (or first small ones) with each kernel that f32 or mixed would run."""
    for op in OPS.values():
        if only not in op.name:
            continue
        wanted = [c for c in op.cases if c.quick == quick]
        for case in wanted[-1:] if quick else wanted:
            dims = op.complete(Dims(case.values))
            found: dict[str, tuple[Kernel, str]] = {}
            for precision in ("mixed", "f32"):
                if (kernel := op.chosen(Recorder(device, precision=precision), dims)) is not None:
                    found[kernel.name] = kernel, precision
            if every:
                rest = [k for k in op.kernels if k.runs_on(device) and evaluate(k.fits, dims)]
                found = {k.name: (k, "mixed") for k in rest}
            yield from ((op, case, kernel, precision) for kernel, precision in found.values())


def timed(
    device: Device,
    op: Op,
    case: Case,
    kernel: Kernel,
    precision: str,
    repeats: int,
    used: float,
    theirs: dict[str, Any],
) -> Timed:
    """Median device time of the case on random inputs."""
    arrays, dims = inputs(op, case)
    held = {
        arg.name: device.upload(arg.name, arrays[arg.name].reshape(op.shape_of(arg, dims)), arg.dtype)
        if arg.name in arrays
        else device.buffer(arg.name, op.shape_of(arg, dims), arg.dtype)
        for arg in op.args
    }
    given = {**held, **case.values}
    seconds = []
    profiler = Profiler(device)
    for i in range(repeats + 3):
        profiler.seconds.clear()
        with Recorder(device, profiler, precision) as rec:
            op(rec, kernel=kernel, **given)
        if i >= 3:
            seconds.append(sum(profiler.seconds.values()))
    plan = next(p for key, p in reversed(device.plans.items()) if key[0] == op.name)
    device.free(*held.values())
    item = theirs.get(_PEERS.get(op.name, "").format(**dims), {})
    milliseconds = item.get("ms", item.get("forward_ms"))
    return Timed(
        op.name,
        kernel.name,
        case.name,
        max(statistics.median(seconds), 1e-9),
        plan.flops,
        plan.nbytes,
        used,
        milliseconds / 1e3 if milliseconds else None,
    )


def copy_bandwidth(device: Device) -> float:
    """Bytes read and written a second by a large copy through a kernel."""
    count = min(_COPY_BYTES, device.max_binding // 2) // 4
    if device.is_cpu:
        count = 1 << 20
    source, target = device.buffer("source", (count,)), device.buffer("target", (count,))
    profiler = Profiler(device)
    scale = OPS["scale"]
    for i in range(6):
        if i == 3:
            profiler.seconds.clear()
            profiler.calls.clear()
        with Recorder(device, profiler) as rec:
            scale(rec, x=source, y=target, s=1.0)
    rate = 8.0 * count * 3 / sum(profiler.seconds.values())
    device.free(source, target)
    return rate


if __name__ == "__main__":
    main()
