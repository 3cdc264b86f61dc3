"""The whole job on the bundled model: convert, compress, eval, train, eval, export; prints one table.

Run by tools/quickstart. Calibration text: docstrings of this Python's standard library; evaluation text: docstrings of
modules that the calibration never saw.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "tiny-qwen3.5"
WINDOW, BATCH, STEPS, HELD_OUT = 128, 4, 20, 16
LR = 6e-2  # twice the default: twenty steps are few
EMBEDDINGS = ("--embed-dtype", "q8_2f")
# less than the defaults take on two cores, for a start some 5 % worse
QUICK = ("--method", "itq", "--paths", 1, "--fit-tokens", 6144, "--sel-tokens", 2048, "--window", WINDOW)
EVAL_WINDOWS = 24


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "quickstart", help="folder for the results"
    )
    parser.add_argument("--bpw", type=float, default=1.0, help="bits per weight of the body linears")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"training steps of {BATCH} windows of {WINDOW} tokens"
    )
    args = parser.parse_args()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = run(args.out, args.bpw, args.steps)
    table(rows)
    start, end = rows[1]["kl"], rows[2]["kl"]
    took = time.monotonic() - began
    print(f"held-out KL fell by {100 * (1 - end / start):.1f} %; it took {took:.0f} s; results in {args.out}")
    return 0


def run(out: Path, bpw: float, steps: int) -> list[dict[str, Any]]:
    """The commands of the README, in order; one row per model."""
    calib, held = out / "calibration.txt", out / "held_out.txt"
    teacher, student, trained = (out / f"{name}.cmf" for name in ("teacher", "student", "trained"))
    call([sys.executable, str(ROOT / "tools" / "gather_docstrings.py"), str(calib), "--holdout", str(held)])
    seconds = {
        "teacher": call(nvgpu("convert", MODEL, "-o", teacher)),
        "student": call(
            nvgpu("compress", teacher, "-o", student, "--bpw", bpw, *EMBEDDINGS, "--calib", calib, *QUICK)
        ),
    }
    before = [
        evaluate("teacher", teacher, held, None),
        evaluate("student, compressed", student, held, teacher),
    ]
    options = {
        "tokens": steps * BATCH * WINDOW,
        "window": WINDOW,
        "batch": BATCH,
        "eval-windows": HELD_OUT,
        "eval-every": max(1, steps // 2),
        "lr": LR,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    seconds["trained"] = call(nvgpu("train", student, teacher, "--calib", calib, "-o", trained, *flags))
    rows = [*before, evaluate("student, trained", trained, held, teacher)]
    export = out / "exported"
    if export.exists():
        for file in export.iterdir():
            file.unlink()
    call(nvgpu("export", trained, "-o", export))
    for row, path, spent in zip(rows, (teacher, student, trained), seconds.values(), strict=True):
        sizes = json.loads(output(nvgpu("inspect", path, "--json")))
        row.update(body=sizes["bpw_body"], file=sizes["bpw_file"], bytes=sizes["bytes"], seconds=spent)
    return rows


def evaluate(name: str, model: Path, text: Path, teacher: Path | None) -> dict[str, Any]:
    command = nvgpu(
        "eval", model, "--text", text, "--window", WINDOW, "--max-windows", EVAL_WINDOWS, "--json"
    )
    result = json.loads(output(command + (["--teacher", str(teacher)] if teacher else [])))
    return {"name": name, "kl": result.get("kl"), "ppl": result["ppl"]}


def table(rows: list[dict[str, Any]]) -> None:
    columns = f"{'':22}{'held-out KL':>12}{'perplexity':>12}{'bpw body':>10}{'bpw file':>10}{'MB':>8}{'made in s':>11}"
    print("\n" + columns + "\n" + "-" * len(columns))
    for r in rows:
        kl = "0" if r["kl"] is None else f"{r['kl']:.4f}"
        numbers = f"{kl:>12}{r['ppl']:>12.3f}{r['body']:>10.3f}{r['file']:>10.3f}{r['bytes'] / 1e6:>8.2f}{r['seconds']:>11.1f}"
        print(f"{r['name']:22}{numbers}")
    print()


def nvgpu(*words: object) -> list[str]:
    return [sys.executable, "-m", "nvgpu", *map(str, words)]


def call(command: list[str]) -> float:
    """Run a command whose output goes to the terminal; seconds it took."""
    print("$ " + shown(command), flush=True)
    began = time.monotonic()
    subprocess.run(command, check=True, env=environment())
    return time.monotonic() - began


def output(command: list[str]) -> str:
    print("$ " + shown(command), flush=True)
    return subprocess.run(command, check=True, env=environment(), stdout=subprocess.PIPE, text=True).stdout


def shown(command: list[str]) -> str:
    words = ["nvgpu", *command[3:]] if command[1:3] == ["-m", "nvgpu"] else ["python", *command[1:]]
    return " ".join(os.path.relpath(w) if w.startswith("/") else w for w in words)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as e:
        sys.exit(f"error: a step failed with exit code {e.returncode}")
