#!/usr/bin/env python3
"""Encoders and budgets against each other on one model, before and after metric training; the rows go to docs/results.md.

    python tools/grid.py                                              # the bundled model, the full grid
    python tools/grid.py --train 25m --bpw 0.55 1 --arms svid-refit admm default

The model is a Hugging Face folder, or with --train one that tools/train_model.py makes first (torch and transformers on a GPU).
Calibration and training text: docstrings of this Python's standard library. Judged on modules that are in neither:
KL over the whole vocabulary and perplexity on their docstrings, perplexity on their source code; the weighted error is the mean
over the body linears in the metric of the SEL Gram. Finished rows are kept in the work folder, so a stopped grid goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nvgpu.encode.calibration import Calibration, compress_calibrated  # noqa: E402
from nvgpu.encode.compress import CompressOptions  # noqa: E402
from nvgpu.encode.encoders import METHODS  # noqa: E402
from nvgpu.errors import NvgpuError  # noqa: E402
from nvgpu.formats.cmf import CmfFile  # noqa: E402
from nvgpu.formats.files import AtomicFile  # noqa: E402
from nvgpu.formats.hf import import_hf  # noqa: E402
from nvgpu.formats.text import TextSource, read_all  # noqa: E402
from nvgpu.formats.tokenizer import Tokenizer  # noqa: E402
from nvgpu.gpu import Device, open_device  # noqa: E402
from nvgpu.progress import Silent  # noqa: E402
from nvgpu.train.evaluate import evaluate  # noqa: E402
from nvgpu.train.options import TrainOptions  # noqa: E402
from nvgpu.train.run import train  # noqa: E402

MODEL = ROOT / "examples" / "tiny-qwen3.5"
ARMS: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in METHODS if method != "auto"},
    "default": {},
}
TITLE = "### Grid: "
COLUMNS = (
    "bpw asked", "encoder", "bpw", "weighted error", "KL", "perplexity", "on source",
    "KL trained", "perplexity trained", "on source trained", "encoded in s", "trained in s",
)  # fmt: skip


def main() -> int:
    args = parser().parse_args()
    folder = args.model
    if args.train is not None:
        folder = args.out / "models" / args.train
        if not (folder / "config.json").exists():
            command = [
                sys.executable,
                str(ROOT / "tools" / "train_model.py"),
                str(folder),
                "--size",
                args.train,
            ]
            subprocess.run([*command, "--minutes", str(args.minutes)], check=True)
    name = args.name or folder.name
    grid = Grid(args.out / name, folder, args)
    for bpw in args.bpw:
        for arm in args.arms:
            grid.row(bpw, arm)
    text = grid.section(name)
    print(text)
    if args.results is not None:
        put(args.results, name, text)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "model", type=Path, nargs="?", default=MODEL, help="Hugging Face folder; the bundled model"
    )
    made.add_argument(
        "--train", metavar="SIZE", help="train this model first: a size of tools/train_model.py"
    )
    made.add_argument("--minutes", type=float, default=7.0, help="of that training")
    made.add_argument("--name", help="of the model in the table; the folder's by default")
    made.add_argument("--bpw", type=float, nargs="+", default=[0.3, 0.55, 1.0, 1.5])
    made.add_argument("--arms", choices=ARMS, nargs="+", default=[name for name in ARMS if name != "default"])
    made.add_argument("--steps", type=int, default=200, help="training steps of --batch windows")
    made.add_argument("--window", type=int, default=64, help="tokens a training window")
    made.add_argument("--batch", type=int, default=4)
    made.add_argument("--lr", type=float, default=6e-2)
    made.add_argument(
        "--eval-windows", type=int, default=24, help="windows of 128 tokens to judge on, of each text"
    )
    made.add_argument("--seed", type=int, default=42)
    made.add_argument("--out", type=Path, default=ROOT / "build" / "grid", help="work folder")
    made.add_argument(
        "--results", type=Path, help="put the table into this file, in the place of the model's old one"
    )
    return made


@dataclass
class Grid:
    """The rows of one model; `folder` holds its files and `rows.jsonl`."""

    folder: Path
    model: Path
    args: argparse.Namespace

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.teacher = self.folder / "teacher.cmf"
        self.texts = {kind: self.folder / f"{kind}.txt" for kind in ("calibration", "docstrings", "source")}
        if not all(path.exists() for path in self.texts.values()):
            gather = [ROOT / "tools" / "gather_docstrings.py", self.texts["calibration"]]
            held_out = ["--holdout", self.texts["docstrings"], "--holdout-source", self.texts["source"]]
            subprocess.run([sys.executable, *map(str, [*gather, *held_out])], check=True)
        if not self.teacher.exists():
            import_hf(self.model, self.teacher)
        self._device: Device | None = None
        self.rows = (
            [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []
        )

    @property
    def _log(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def device(self) -> Device:
        if self._device is None:
            self._device = open_device()
        return self._device

    def key(self, bpw: float, arm: str) -> dict[str, Any]:
        """What a row depends on."""
        a = self.args
        training = {"steps": a.steps, "window": a.window, "batch": a.batch, "lr": a.lr, "seed": a.seed}
        return {"asked": bpw, "arm": arm, **training, "eval_windows": a.eval_windows}

    def row(self, bpw: float, arm: str) -> None:
        """Encode, judge, train, judge; a row that is there is left alone."""
        key = self.key(bpw, arm)
        if any(row["key"] == key for row in self.rows):
            return
        student, trained = self.folder / "student.cmf", self.folder / "trained.cmf"
        student.unlink(missing_ok=True)
        row: dict[str, Any] = {"key": key, "adapter": self.device.adapter.label}
        began = time.monotonic()
        with CmfFile.open(self.teacher) as teacher:
            options = CompressOptions(bpw, seed=self.args.seed, **ARMS[arm])
            calibration = Calibration((TextSource(self.texts["calibration"]),))
            report = compress_calibrated(teacher, student, options, calibration, Silent(), device=open_device)
        row |= {"bpw": report.body_bpw, "error": report.mean_sel_error, "encode_s": time.monotonic() - began}
        row["before"] = self.judge(student)
        began = time.monotonic()
        row["topk_kl"] = self.train(student, trained)
        row |= {"train_s": time.monotonic() - began, "after": self.judge(trained)}
        self.rows.append(row)
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")
        print(" | ".join(cells(row)), flush=True)

    def train(self, student: Path, output: Path) -> float:
        """Held-out top-k KL of the written file."""
        a = self.args
        tokens = a.steps * a.batch * a.window
        options = TrainOptions(
            tokens=tokens, window=a.window, batch=a.batch, lr=a.lr, seed=a.seed, eval_every=max(1, a.steps // 4)
        )  # fmt: skip
        source = [TextSource(self.texts["calibration"])]
        cache = self.folder / f"targets.{tokens}.{a.window}.{a.batch}.{a.seed}"
        report = train(
            self.device, student, self.teacher, source, output, options, Silent(), topk_cache=cache
        )
        return report.kl_written

    def judge(self, path: Path) -> dict[str, float]:
        """KL and perplexity on docstrings, perplexity on source code, all of modules that calibration does not see."""
        found: dict[str, float] = {}
        with CmfFile.open(path) as model, CmfFile.open(self.teacher) as teacher:
            for kind, against in (("docstrings", teacher), ("source", None)):
                tokens = read_all(self.texts[kind], Tokenizer.of(teacher)).ids
                result = evaluate(
                    self.device, model, tokens, window=128, max_windows=self.args.eval_windows,
                    teacher=against, progress=Silent(),
                )  # fmt: skip
                found[f"ppl_{kind}"] = result.ppl
                if result.kl is not None:
                    found["kl"] = result.kl
        return found

    def section(self, name: str) -> str:
        """The table of this run's options, as Markdown."""
        a = self.args
        kept = [row for row in self.rows if row["key"] == self.key(row["key"]["asked"], row["key"]["arm"])]
        kept.sort(key=lambda row: (row["key"]["asked"], list(ARMS).index(row["key"]["arm"])))
        own = self.judge(self.teacher)
        adapters = ", ".join(sorted({row["adapter"] for row in kept}))
        return "\n".join(
            [
                TITLE + name,
                "",
                f"`tools/grid.py`, {adapters}: {a.steps} steps of {a.batch} windows of {a.window} tokens, lr {a.lr:g}.",
                f"The teacher's perplexity: {own['ppl_docstrings']:.2f} on docstrings, {own['ppl_source']:.2f} on source.",
                "",
                "| " + " | ".join(COLUMNS) + " |",
                "|" + " --- |" * len(COLUMNS),
                *("| " + " | ".join(cells(row)) + " |" for row in kept),
                "",
            ]
        )


def cells(row: dict[str, Any]) -> list[str]:
    """A row's cells, in the order of COLUMNS."""
    judged = [
        text
        for when in ("before", "after")
        for text in (
            f"{row[when]['kl']:.3f}",
            f"{row[when]['ppl_docstrings']:.1f}",
            f"{row[when]['ppl_source']:.1f}",
        )
    ]
    head = [f"{row['key']['asked']:g}", row["key"]["arm"], f"{row['bpw']:.3f}", f"{row['error']:.4f}"]
    return [*head, *judged, f"{row['encode_s']:.0f}", f"{row['train_s']:.0f}"]


def put(path: Path, name: str, section: str) -> None:
    """Replace the section of `name` in a Markdown file, or append it."""
    before, found, rest = path.read_text(encoding="utf-8").partition(f"{TITLE}{name}\n")
    after = ""
    if found:
        lines = rest.splitlines(keepends=True)
        end = next((i for i, line in enumerate(lines) if line.startswith("#")), len(lines))
        after = "".join(lines[end:])
    text = before.rstrip("\n") + "\n\n" + section + ("\n" + after if after else "")
    with AtomicFile(path) as out:
        out.write(text.encode())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NvgpuError as e:
        sys.exit(f"error: {e}")
