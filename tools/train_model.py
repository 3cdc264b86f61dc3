#!/usr/bin/env python3
"""Trains a small Qwen3.5 model with torch on Python source code: something to compress that is larger than the bundled model.

    python tools/train_model.py build/models/25m --size 25m --minutes 7

Needs torch and transformers, which nvgpu does not, and a GPU for a model of use. The text is the source of this Python's
standard library and of the packages installed beside it; every tenth module of the library is held out, those of
tools/gather_docstrings.py. The tokenizer is the bundled model's. AdamW, warm-up and cosine by the share of time used; bf16
products on a GPU. The folder appears when the model is trained; it is not resumed.
"""

from __future__ import annotations

import argparse
import math
import shutil
import site
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from gather_docstrings import modules  # noqa: E402

TOKENIZER = ROOT / "examples" / "tiny-qwen3.5"
EVERY = 10  # of gather_docstrings' default
# hidden_size, num_hidden_layers, intermediate_size, query and key heads of attention, key and value heads of GatedDeltaNet
SIZES = {
    "1m": (128, 4, 256, 2, 1, 1, 2),
    "10m": (384, 6, 896, 6, 2, 2, 3),
    "25m": (512, 8, 1152, 8, 2, 2, 4),
}


def main() -> int:
    args = parser().parse_args()
    if args.folder.exists():
        sys.exit(f"error: {args.folder}: exists; give another folder or remove it")
    import torch

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens, held_out = corpus(args.max_mb)
    model = build(args.size).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{args.size}: {parameters} parameters, {len(tokens)} training tokens, on {device}", flush=True)
    fit(model, tokens, held_out, args)
    save(model, args.folder)
    print(f"{args.folder} written")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, help="Hugging Face folder to write")
    made.add_argument("--size", choices=SIZES, default="25m")
    made.add_argument("--minutes", type=float, default=7.0, help="of training")
    made.add_argument("--batch", type=int, default=64, help="windows a step")
    made.add_argument("--window", type=int, default=512, help="tokens a window")
    made.add_argument("--lr", type=float, default=1.5e-3, help="peak rate")
    made.add_argument("--max-mb", type=float, default=200.0, help="of text")
    made.add_argument("--seed", type=int, default=0)
    return made


def corpus(max_mb: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token ids (u16) to train on and to judge by, files separated by the end-of-text token."""
    from tokenizers import Tokenizer

    found, _ = modules(Path(sysconfig.get_path("stdlib")), EVERY)
    held_out = [m.source.decode("utf-8", "replace") for m in found if m.held_out]
    texts = [m.source.decode("utf-8", "replace") for m in found if not m.held_out]
    room = int(max_mb * 1e6) - sum(map(len, texts))
    folders = [Path(p) for p in dict.fromkeys([*site.getsitepackages(), sysconfig.get_path("purelib")])]
    for path in sorted(p for folder in folders if folder.is_dir() for p in folder.rglob("*.py")):
        if room <= 0:
            break
        text = path.read_text(encoding="utf-8", errors="replace")
        if 200 < len(text) < 1 << 20:
            texts.append(text)
            room -= len(text)
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")

    def ids(texts: list[str]) -> np.ndarray[Any, Any]:
        encoded = (
            e.ids
            for part in range(0, len(texts), 512)
            for e in tokenizer.encode_batch(texts[part : part + 512])
        )
        return np.concatenate([np.array([*row, end], np.uint16) for row in encoded])

    return ids(texts), ids(held_out)


def build(size: str) -> Any:
    """`transformers`' own model with fresh weights: three layers of GatedDeltaNet, then one of attention."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    hidden, layers, intermediate, heads, kv_heads, key_heads, value_heads = SIZES[size]
    config = Qwen3_5TextConfig(
        vocab_size=4096, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=intermediate,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=64, linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads, linear_key_head_dim=128, linear_value_head_dim=128,
        layer_types=["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        max_position_embeddings=4096, tie_word_embeddings=True, eos_token_id=2, pad_token_id=0, bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    return Qwen3_5ForCausalLM(config)


def fit(
    model: Any, tokens: np.ndarray[Any, Any], held_out: np.ndarray[Any, Any], args: argparse.Namespace
) -> None:
    """Train for `args.minutes`; prints loss, tokens/s and time left about every five seconds."""
    import torch

    device = model.device
    data = torch.from_numpy(tokens.astype(np.int32)).to(device)
    offsets = torch.arange(args.window, device=device)
    generator = torch.Generator(device=device).manual_seed(args.seed)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimiser = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    model.train()
    began = said = time.monotonic()
    step, share = 0, 0.0
    while share < 1.0:
        share = min(1.0, (time.monotonic() - began) / (60 * args.minutes))
        rate = args.lr * min(1.0, (step + 1) / 100) * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
        for group in optimiser.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(data) - args.window, (args.batch, 1), generator=generator, device=device)
        loss = nll(model, data[starts + offsets])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
        now = time.monotonic()
        if now - said > 5 or share == 1.0:
            said, speed = now, step * args.batch * args.window / (now - began)
            left = max(0.0, 60 * args.minutes - (now - began))
            print(f"step {step}: loss {loss.item():.3f}, {speed:.0f} tokens/s, {left:.0f} s left", flush=True)
    windows = held_out[: len(held_out) // args.window * args.window].reshape(-1, args.window)[
        :: max(1, len(held_out) // 65536)
    ]
    model.eval()
    with torch.no_grad():
        parts = [
            torch.from_numpy(windows[i : i + 8].astype(np.int32)).to(device)
            for i in range(0, len(windows), 8)
        ]
        mean = sum(nll(model, part).item() * len(part) for part in parts) / len(windows)
    print(f"held-out source: {mean:.4f} nats a token, perplexity {math.exp(mean):.2f}")


def nll(model: Any, ids: Any) -> Any:
    """Mean negative log-likelihood of the next token."""
    import torch

    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        logits = model(input_ids=ids.long(), use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), ids[:, 1:].long().flatten()
    )


def save(model: Any, folder: Path) -> None:
    """The folder, bf16 weights and the bundled tokenizer; written beside it and renamed."""
    import torch

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(temporary)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, temporary / name)
    temporary.rename(folder)


if __name__ == "__main__":
    sys.exit(main())
