"""The work behind `nvgpu devices --check`."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console

from nvgpu.errors import NvgpuError
from nvgpu.gpu import Device, Recorder
from nvgpu.ops import linear
from nvgpu.ops.parity import check, runs
from nvgpu.ops.table import Dims

_SECONDS = 1.0


def quick_parity(device: Device, console: Console) -> tuple[int, list[str], float]:
    """Run every quick case: (cases, failures, largest share of a tolerance that a passing case used)."""
    failures: list[str] = []
    used, count = 0.0, 0
    for op, kernel, case in runs(device):
        dims = op.complete(Dims(case.values))
        if not any(kernel.suits(device, dims, precision) for precision in ("f32", "mixed")):
            continue
        count += 1
        try:
            used = max(used, check(device, op, kernel, case).used)
        except NvgpuError as e:
            failures.append(str(e))
            console.print(f"parity: {e}", soft_wrap=True, markup=False)
    return count, failures, used


def gemm_rates(device: Device) -> dict[str, float]:
    """GFLOP/s of products with f32 and f16 weights, and with packed signs, timed over about a second each.

    Where matrix units run, f16 and signs are timed on them too.
    """
    n = 256 if device.is_cpu else 4096
    rng = np.random.default_rng(0)
    x = device.upload("check.x", rng.standard_normal((n, n), np.float32))
    y = device.buffer("check.y", (n, n))
    w32 = device.upload("check.w", rng.standard_normal((n, n), np.float32))
    w16 = device.upload("check.w16", rng.standard_normal((n, n), np.float32), "f16")
    bits = device.upload("check.bits", rng.integers(0, 1 << 32, (n, n // 32), np.uint32), "u32")
    ones = device.upload("check.ones", np.ones(n, np.float32))
    calls: dict[str, Callable[[Recorder], None]] = {
        f"f32 {n}³": lambda rec: linear.matmul_nt(rec, x=x, w=w32, y=y),
        f"f16 {n}³": lambda rec: linear.matmul_nt_f16(rec, x=x, w=w16, y=y),
        f"signs {n}³": lambda rec: linear.sign_matmul_nt(rec, x=x, cin=ones, w=bits, y=y),
    }
    if device.matrix_units:
        calls |= {
            f"f16 {n}³, matrix units": lambda rec: linear.matmul_nn_f16(rec, x=x, w=w16, y=y),
            f"signs {n}³, matrix units": lambda rec: linear.sign_matmul_nn(
                rec, x=x, cin=ones, w=bits, y=y, K=n
            ),
        }
    rates = {}
    for name, call in calls.items():
        precision = "mixed" if name.endswith("units") else "f32"
        _timed(device, call, 1, precision)  # compiles the pipeline
        once = _timed(device, call, 1, precision)
        repeats = max(1, int(_SECONDS / max(once, 1e-6)))
        rates[name] = 2.0 * n**3 * repeats / _timed(device, call, repeats, precision) / 1e9
    device.free(x, y, w32, w16, bits, ones)
    return rates


def _timed(device: Device, call: Callable[[Recorder], None], repeats: int, precision: str) -> float:
    device.wait()
    began = time.perf_counter()
    with Recorder(device, precision=precision) as rec:
        for _ in range(repeats):
            call(rec)
    device.wait()
    return time.perf_counter() - began
