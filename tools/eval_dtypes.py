#!/usr/bin/env python3
"""What each storage type costs the bundled model: bits per weight, perplexity and KL to the original; prints one table.

python tools/eval_dtypes.py [--windows 24]

The model is stored as bf16, then every matrix but in_proj_a and in_proj_b (embeddings included, with `--body` not) in each
type. The text is docstrings of this Python's standard library that the demo holds out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

MODEL = ROOT / "examples" / "tiny-qwen3.5"
WINDOW = 128


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=24, help=f"windows of {WINDOW} tokens to score")
    parser.add_argument("--body", action="store_true", help="leave the embeddings in bf16")
    options = parser.parse_args()

    from nvgpu.encode.requant import requant
    from nvgpu.formats.cmf import CmfFile
    from nvgpu.formats.codecs import ENCODED
    from nvgpu.formats.hf import import_hf
    from nvgpu.formats.text import read_all
    from nvgpu.formats.tokenizer import Tokenizer
    from nvgpu.gpu import open_device
    from nvgpu.progress import Silent
    from nvgpu.train.evaluate import evaluate

    device = open_device()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        texts = folder / "calibration.txt", folder / "held_out.txt"
        gather = [sys.executable, ROOT / "tools" / "gather_docstrings.py", texts[0], "--holdout", texts[1]]
        subprocess.run(list(map(str, gather)), check=True, capture_output=True)
        import_hf(MODEL, folder / "teacher.cmf", dtype="bf16")
        print(
            "| type | bits per weight, whole file without tokenizer | perplexity | KL to bf16 | mean relative error |"
        )
        print("| --- | --- | --- | --- | --- |")
        with CmfFile.open(folder / "teacher.cmf") as teacher:
            tokens = read_all(texts[1], Tokenizer.of(teacher))
            for dtype in sorted(ENCODED, key=lambda d: d.label != "f32"):
                path = folder / f"{dtype.label}.cmf"
                only = () if options.body else ("*_proj*.weight", "*gate*", "*embed_tokens*")
                report = requant(teacher, path, dtype=dtype, only=only)
                with CmfFile.open(path) as model:
                    result = evaluate(
                        device, model, tokens, window=WINDOW, max_windows=options.windows,
                        teacher=teacher, topk=None, mixed=False, progress=Silent(),
                    )  # fmt: skip
                    stored = sum(e.nbytes for e in model.tensors.values())
                    weights = sum(_count(e.shape) for e in model.tensors.values())
                errors = [row.relative_error for row in report.changed] or [0.0]
                row = f"{8 * stored / weights:.3f} | {result.ppl:.3f} | {result.kl:.5f} | {sum(errors) / len(errors):.4f}"
                print(f"| {dtype.label} | {row} |", flush=True)
    return 0


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


if __name__ == "__main__":
    sys.exit(main())
