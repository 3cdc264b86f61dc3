#!/usr/bin/env python3
"""Metric-only training against training with signs: the bundled model, equal steps, several seeds; prints one table.

The student is compressed once, at 1.0 bits per weight. Each seed draws its windows from docstrings of this Python's standard
library; the student's Grams come from other modules than the windows. All runs of a seed share windows and teacher targets.
KL is top-64 on held-out windows, measured on the written file.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nvgpu.encode.calibration import Calibration, compress_calibrated  # noqa: E402
from nvgpu.encode.compress import CompressOptions  # noqa: E402
from nvgpu.encode.encoders import AUTO, METHODS  # noqa: E402
from nvgpu.errors import NvgpuError  # noqa: E402
from nvgpu.formats.cmf import CmfFile  # noqa: E402
from nvgpu.formats.hf import import_hf  # noqa: E402
from nvgpu.formats.text import TextSource  # noqa: E402
from nvgpu.gpu import Device, open_device  # noqa: E402
from nvgpu.progress import Silent  # noqa: E402
from nvgpu.ref.signs import OPTIMISERS  # noqa: E402
from nvgpu.train.options import TrainOptions  # noqa: E402
from nvgpu.train.run import TrainReport, train  # noqa: E402
from nvgpu.train.sign_options import SignOptions  # noqa: E402

MODEL = ROOT / "examples" / "tiny-qwen3.5"


def main() -> int:
    args = parser().parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    student = prepare(args.out, args.start)
    device = open_device()
    options = TrainOptions(
        tokens=args.steps * args.batch * args.window,
        window=args.window,
        batch=args.batch,
        lr=args.lr,
        eval_windows=args.held_out,
        eval_every=max(1, args.steps // 2),
    )
    arms: dict[str, SignOptions | None] = {"metric only": None}
    for rate in args.sign_lr:
        lr = None if rate == "auto" else float(rate)
        arms[f"{args.sign_opt}, {rate}"] = SignOptions(opt=args.sign_opt, lr=lr)
    reports = {
        name: [run(device, student, replace(options, seed=seed, signs=signs), name) for seed in args.seeds]
        for name, signs in arms.items()
    }
    print(
        f"\n{args.start} start, {args.steps} steps of {args.batch} windows of {args.window} tokens, lr {args.lr:g}; "
        f"{args.held_out} held-out windows; {device.adapter.label}; {time.monotonic() - began:.0f} s in all\n"
    )
    table(reports, args.seeds)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--out", type=Path, default=ROOT / "build" / "signs", help="folder for models and texts"
    )
    made.add_argument("--start", choices=METHODS, default=AUTO, help="encoder of the student, calibrated")
    made.add_argument("--steps", type=int, default=40)
    made.add_argument("--window", type=int, default=64, help="tokens a window")
    made.add_argument("--batch", type=int, default=4, help="windows a step")
    made.add_argument("--held-out", type=int, default=16, help="held-out windows")
    made.add_argument("--lr", type=float, default=6e-2, help="peak rate of scales and gains")
    made.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    made.add_argument("--sign-opt", choices=OPTIMISERS, default=SignOptions().opt)
    made.add_argument("--sign-lr", nargs="+", default=["auto", "3e-3"], help="peak rates of the latents")
    return made


def prepare(out: Path, start: str) -> Path:
    """The student's path; texts, teacher and student are made where they are not there."""
    texts = out / "calibration.txt", out / "grams.txt"
    if not all(path.exists() for path in texts):
        gather = [sys.executable, str(ROOT / "tools" / "gather_docstrings.py"), str(texts[0])]
        subprocess.run([*gather, "--holdout", str(texts[1])], check=True, stdout=subprocess.DEVNULL)
    if not (out / "teacher.cmf").exists():
        import_hf(MODEL, out / "teacher.cmf")
    student = out / f"student.{start}.cmf"
    if not student.exists():
        calibration = Calibration((TextSource.parse(str(texts[1])),))
        with CmfFile.open(out / "teacher.cmf") as model:
            options = CompressOptions(1.0, start, paths=1)
            compress_calibrated(model, student, options, calibration, Silent(), device=open_device)
    return student


def run(device: Device, student: Path, options: TrainOptions, name: str) -> TrainReport:
    began = time.monotonic()
    out = student.parent
    report = train(
        device,
        student,
        out / "teacher.cmf",
        [TextSource.parse(str(out / "calibration.txt"))],
        out / "trained.cmf",
        options,
        Silent(),
        topk_cache=out / f"targets.{options.seed}.{options.tokens}.{options.window}.{options.eval_windows}",
    )
    seconds = time.monotonic() - began
    print(f"{name}, seed {options.seed}: {report.kl_start:.4f} to {report.kl_written:.4f}, {seconds:.0f} s")
    sys.stdout.flush()
    return report


def table(reports: dict[str, list[TrainReport]], seeds: list[int]) -> None:
    """One row an arm: held-out KL by seed, its mean, and the share of signs that differ from the start."""
    print("| signs | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | flipped |")
    print("| --- |" + " --- |" * (len(seeds) + 2))
    start = [report.kl_start for report in next(iter(reports.values()))]
    for name, kls, flipped in [
        ("before training", start, 0.0),
        *(
            (
                name,
                [r.kl_written for r in found],
                statistics.mean(r.evals[-1].get("flipped", 0.0) for r in found),
            )
            for name, found in reports.items()
        ),
    ]:
        values = " | ".join(f"{kl:.4f}" for kl in (*kls, statistics.mean(kls)))
        print(f"| {name} | {values} | {100 * flipped:.2f} % |")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NvgpuError as e:
        sys.exit(f"error: {e}")
