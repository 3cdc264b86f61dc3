"""Check that `transformers` loads an exported folder and gives the golden logits.

    python tools/check_export.py HF_DIR [--golden GOLDEN.npz] [--tolerance 1e-3]

Needs torch and transformers, which nvgpu itself does not. The model runs in float32 on the CPU. GOLDEN.npz holds
`ids` [B, T], `logits_tail` (the last positions) and `nll` [B, T-1]; without it the folder is only loaded and run.
Prints one line per figure; exit code 1 where a difference exceeds the tolerance.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

NLL_TOLERANCE = 1e-4


def main() -> int:
    args = _arguments()
    import torch  # here and below, so that --help works without it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    golden = np.load(args.golden) if args.golden else None
    model, info = AutoModelForCausalLM.from_pretrained(
        args.folder, dtype=torch.float32, output_loading_info=True
    )
    problems = {k: sorted(v) for k, v in info.items() if k in ("missing_keys", "unexpected_keys") and v}
    print(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters())} parameters")
    for kind, names in problems.items():
        print(f"{kind}: {', '.join(names)}")
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    text = "def f(x):\n    return x"
    if tokenizer.decode(tokenizer(text)["input_ids"]) != text:
        problems["tokenizer"] = ["does not give a text back"]
    ids = golden["ids"] if golden is not None else np.array([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(ids.astype(np.int64))).logits
    ok = bool(torch.isfinite(logits).all()) and not problems
    if golden is not None:
        ok &= _compare(logits, golden, args.tolerance)
    print("ok" if ok else "FAILED")
    return 0 if ok else 1


def _compare(logits: Any, golden: Any, tolerance: float) -> bool:
    import torch

    tail = golden["logits_tail"]
    difference = float(np.abs(logits[:, -tail.shape[1] :].numpy() - tail).max())
    targets = torch.from_numpy(golden["ids"].astype(np.int64))[:, 1:]
    log_p = torch.log_softmax(logits[:, :-1].double(), -1)
    nll = -log_p.gather(-1, targets[..., None])[..., 0].numpy()
    mean = abs(float(nll.mean() - golden["nll"].mean()))
    print(f"logits: largest difference {difference:.3g}, tolerance {tolerance:g}")
    print(f"mean nll: {nll.mean():.6f}, difference {mean:.3g}, tolerance {NLL_TOLERANCE:g}")
    return difference <= tolerance and mean <= NLL_TOLERANCE


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
