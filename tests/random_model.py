"""Random Qwen3.5 models of any geometry, the same on every machine.

Recipe: the tensors in sorted order of their names, each drawn in float64 from the one generator
`numpy.random.default_rng(seed)`:

| tensor | values |
| --- | --- |
| matrices | normal · 1.5/sqrt(columns) |
| embeddings | normal |
| `conv1d.weight` | normal · 0.5 |
| gains of the body, q/k and final norms | normal · 0.2 (they act as 1 + w) |
| gains of GatedDeltaNet's norm | 1 + normal · 0.2 |
| `A_log` | uniform on [-1.5, 1.5) |
| `dt_bias` | normal - 1 |

Then every value is rounded to 8 significant bits, and to 0 below 2^-14, so that f16 and bf16 hold it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, Any]
Config = dict[str, Any]

ODD: Config = {
    "hidden_size": 192,
    "intermediate_size": 416,
    "vocab_size": 3001,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": False,
}
"""Sizes that are no multiple of anything convenient."""


def make_config(**changes: Any) -> Config:
    """A `config.json` of Qwen3_5ForCausalLM: a small model of two layers, with `changes` to its entries."""
    config: Config = {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "float32",
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    config |= changes
    config["num_hidden_layers"] = len(config["layer_types"])
    return config


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for i, kind in enumerate(config["layer_types"]):
        tails = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (width, hidden),
            "mlp.up_proj.weight": (width, hidden),
            "mlp.down_proj.weight": (hidden, width),
        }
        tails |= _gdn_shapes(config) if kind == "linear_attention" else _attention_shapes(config)
        shapes |= {f"model.layers.{i}.{tail}": shape for tail, shape in tails.items()}
    return shapes


def _attention_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, D = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * D, config["num_key_value_heads"] * D
    return {
        "self_attn.q_proj.weight": (2 * q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "self_attn.q_norm.weight": (D,),
        "self_attn.k_norm.weight": (D,),
    }


def _gdn_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, Hv, Dv = (config[k] for k in ("hidden_size", "linear_num_value_heads", "linear_value_head_dim"))
    values = Hv * Dv
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + values
    return {
        "linear_attn.in_proj_qkv.weight": (channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (Hv, hidden),
        "linear_attn.in_proj_b.weight": (Hv, hidden),
        "linear_attn.out_proj.weight": (hidden, values),
        "linear_attn.conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (Hv,),
        "linear_attn.dt_bias": (Hv,),
        "linear_attn.norm.weight": (Dv,),
    }


def make_tensors(config: Mapping[str, Any], seed: int) -> dict[str, Array]:
    """The checkpoint's tensors by name, float32 values that f16 and bf16 hold exactly."""
    rng = np.random.default_rng(seed)
    return {name: _exact(_draw(rng, name, shape)) for name, shape in sorted(tensor_shapes(config).items())}


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    if name.endswith("A_log"):
        return rng.uniform(-1.5, 1.5, shape)
    x = rng.standard_normal(shape)
    if name.endswith("dt_bias"):
        return x - 1.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.2 * x
    if len(shape) == 1:
        return 0.2 * x
    if name.endswith("embed_tokens.weight"):
        return x
    return (0.5 if name.endswith("conv1d.weight") else 1.5 / np.sqrt(shape[-1])) * x


def _exact(x: Array) -> Array:
    mantissa, exponent = np.frexp(np.where(np.abs(x) < 2.0**-14, 0.0, x))
    return np.ldexp(np.round(mantissa * 256.0) / 256.0, exponent).astype(np.float32)


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], dtype: str = "float16"
) -> None:
    """A Hugging Face folder: the config, one safetensors file, and a tokenizer whose words are t0, t1, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(config["vocab_size"])))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    save_file({n: np.ascontiguousarray(t, dtype) for n, t in tensors.items()}, folder / "model.safetensors")


def _tokenizer(vocab: int) -> dict[str, Any]:
    words = {f"t{i}": i for i in range(vocab)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
