#!/usr/bin/env python3
"""Computes tests/data/golden_*.npz; needs torch and transformers 5.17, which nvgpu itself does not.

python tools/make_goldens.py [--out FOLDER]

The models are the random ones of tests/random_model.py. An archive holds the config, the weights or their
seed, and what transformers gave in float32 on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.random_model import ODD, make_config, make_tensors  # noqa: E402  found through the line above

Array = np.ndarray[Any, Any]
SEED = 1
TAIL = 4  # last positions of every window whose hidden states and logits are kept


def load(config: dict[str, Any], tensors: dict[str, Array]) -> Any:
    """Qwen3_5ForCausalLM in float32 with exactly these tensors."""
    import torch
    import transformers  # not at the top: --help needs neither

    parsed = transformers.Qwen3_5TextConfig(**json.loads(json.dumps(config)))
    parsed._attn_implementation = "eager"
    model = transformers.Qwen3_5ForCausalLM(parsed).eval()
    state = {name: torch.from_numpy(values) for name, values in tensors.items()}
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def outputs(model: Any, ids: Array) -> tuple[list[Array], Array]:
    """(hidden states [B, T, C], logits [B, T, V])."""
    import torch

    with torch.no_grad():
        out = model(torch.from_numpy(ids.astype(np.int64)), output_hidden_states=True, use_cache=False)
    return [h.numpy() for h in out.hidden_states], out.logits.numpy()


def rope_params() -> dict[str, Array]:
    """A model whose `rope_parameters` differ from the top-level values; all of it is kept."""
    config = make_config(
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        rope_theta=1e6,
        partial_rotary_factor=0.25,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75},
    )
    tensors = make_tensors(config, SEED)
    ids = np.random.default_rng(SEED).integers(0, config["vocab_size"], (2, 33)).astype(np.uint32)
    hidden, logits = outputs(load(config, tensors), ids)
    kept = {f"hidden_{i}": h for i, h in enumerate(hidden)}
    kept |= {f"weight:{name}": w.astype(np.float16) for name, w in tensors.items()}
    return {"config": np.array(json.dumps(config)), "ids": ids, "logits": logits, **kept}


def odd_sizes() -> dict[str, Array]:
    """The odd geometry; its weights are too many to keep, so the recipe makes them again."""
    config = make_config(**ODD)
    ids = np.random.default_rng(SEED).integers(0, config["vocab_size"], (3, 65)).astype(np.uint32)
    hidden, logits = outputs(load(config, make_tensors(config, SEED)), ids)
    scores = logits[:, :-1].astype(np.float64)
    target = np.take_along_axis(scores, ids[:, 1:, None].astype(np.int64), axis=-1)[..., 0]
    kept = {f"hidden_tail_{i}": h[:, -TAIL:] for i, h in enumerate(hidden)}
    return {
        "config": np.array(json.dumps(config)),
        "seed": np.array(SEED),
        "ids": ids,
        "logits_tail": logits[:, -TAIL:],
        "nll": np.log(np.exp(scores).sum(axis=-1)) - target,
        **kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tests" / "data", help="folder (default: tests/data)"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    versions = np.array(", ".join(f"{name} {version(name)}" for name in ("transformers", "torch")))
    for name, make in (("rope_params", rope_params), ("odd_sizes", odd_sizes)):
        path = out / f"golden_{name}.npz"
        np.savez_compressed(path, versions=versions, **make())
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
