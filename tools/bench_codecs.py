#!/usr/bin/env python3
"""Speed of the storage types: GB/s of float32 weights, encoded and decoded, beside plain numpy in the same run.

python tools/bench_codecs.py [--rows 2048] [--cols 4096] [--repeats 5]

Each figure is the median of `--repeats` runs after a warm-up, on all cores for ours. Both sides' payloads are decoded by
both, and must agree (the errors within 1 % where encoders choose differently), before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Median time of a call, one warm-up before."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--cols", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    import numpy as np
    from bench.codecs_numpy import PLAIN

    from nvgpu.formats.codecs import decode, encode

    rng = np.random.default_rng(0)
    shape = options.rows, options.cols
    w = (rng.standard_normal(shape) * np.exp(0.5 * rng.standard_normal((shape[0], 1)))).astype(np.float32)
    norm = np.linalg.norm(w)
    print(f"{shape[0]} x {shape[1]} float32, {os.cpu_count()} cores, median of {options.repeats}, GB/s\n")
    print("| type | relative error | encode | numpy | ratio | decode | numpy | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for dtype, (plain_encode, plain_decode) in PLAIN.items():
        ours, theirs = encode(w, dtype, "w"), plain_encode(w)
        values = decode(ours, dtype, shape, "w")
        if not np.allclose(values, plain_decode(ours.tobytes(), shape), rtol=1e-6, atol=0):
            sys.exit(f"{dtype.label}: the decoders disagree")
        error = float(np.linalg.norm(values - w) / norm)
        other = float(np.linalg.norm(decode(theirs, dtype, shape, "w") - w) / norm)
        if error > 1.01 * other:
            sys.exit(f"{dtype.label}: relative error {error:.5f}, plain numpy has {other:.5f}")
        stored = ours.tobytes()
        times = [
            seconds(call, options.repeats)
            for call in (
                lambda d=dtype: encode(w, d, "w"),
                lambda e=plain_encode: e(w),
                lambda d=dtype, p=ours: decode(p, d, shape, "w"),
                lambda p=stored, f=plain_decode: f(p, shape),
            )
        ]
        e, pe, d, pd = (w.nbytes / t / 1e9 for t in times)
        print(
            f"| {dtype.label} | {error:.4f} | {e:.2f} | {pe:.2f} | {e / pe:.1f} | {d:.2f} | {pd:.2f} | {d / pd:.1f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
