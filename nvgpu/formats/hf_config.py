"""What a Hugging Face `config.json` of the Qwen3.5 family says: the CMF architecture and the tensors of it.

Keys, their defaults and the tensors' shapes are those of the public transformers classes `Qwen3_5TextConfig`
and `Qwen3_5ForCausalLM`; the keys of `arch` are those of the public CMF specification and its reader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvgpu.errors import FormatError

TEXT_ARCHITECTURE = "Qwen3_5ForCausalLM"
TEXT_MODEL_TYPE = "qwen3_5_text"
ARCHITECTURES = (TEXT_ARCHITECTURE, "Qwen3_5ForConditionalGeneration")
ARCH_NAME = "qwen3.5"

EMBEDDINGS = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
SMALL_LINEARS = ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight")

_MAX_LAYERS = 4096
_LAYER_TYPES = {"linear_attention": "LinearAttention", "full_attention": "FullAttention"}


@dataclass(frozen=True)
class ModelConfig:
    """`text`: the text model's own config; `arch`: its CMF form; `shapes`: every tensor, in file order."""

    text: Mapping[str, Any]
    arch: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def tied(self) -> bool:
        """The head is the embedding matrix."""
        return bool(self.arch["tie_word_embeddings"])


def read_config(config: Mapping[str, Any], where: str) -> ModelConfig:
    """Read a parsed config.json; the text model may stand in `text_config`.

    Raises:
        FormatError: another architecture, or a value that is missing or cannot be; names `where`.
    """
    names = config.get("architectures")
    if not isinstance(names, list) or not names or names[0] not in ARCHITECTURES:
        found = names[0] if isinstance(names, list) and names else names
        raise FormatError(f"{where}: architecture {found!r:.80}, expected {' or '.join(ARCHITECTURES)}")
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise FormatError(f"{where}: text_config is {type(text).__name__}, expected an object")
    arch = _Reader(text, where).arch()
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    if not isinstance(tied, bool):
        raise FormatError(f"{where}: tie_word_embeddings is {tied!r}, expected true or false")
    arch["tie_word_embeddings"] = tied
    return ModelConfig(text, arch, expected_shapes(arch))


class _Reader:
    def __init__(self, text: Mapping[str, Any], where: str) -> None:
        self.text = text
        self.where = where

    def count(self, key: str, default: int | None = None) -> int:
        value = self.text.get(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise FormatError(f"{self.where}: {key} is {value!r:.80}, expected a positive whole number")
        return value

    def number(self, source: Mapping[str, Any], key: str, default: float) -> float:
        value = default if source.get(key) is None else source[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise FormatError(f"{self.where}: {key} is {value!r:.80}, expected a positive number")
        try:
            return float(value)
        except OverflowError as e:
            raise FormatError(f"{self.where}: {key} is {value!r:.80}, expected a smaller number") from e

    def only(self, source: Mapping[str, Any], key: str, value: Any) -> None:
        """A setting of which one value is supported, which is also the default."""
        if source.get(key, value) != value:
            raise FormatError(f"{self.where}: {key} is {source[key]!r:.80}, only {value!r} is supported")

    def arch(self) -> dict[str, Any]:
        self.only(self.text, "hidden_act", "silu")
        self.only(self.text, "attention_bias", False)
        self.only(self.text, "attn_output_gate", True)
        theta, rotary = self.rope()
        kinds = self.layer_types()
        arch = {
            "arch_name": ARCH_NAME,
            "hidden_size": self.count("hidden_size"),
            "intermediate_size": self.count("intermediate_size"),
            "num_layers": len(kinds),
            "num_attention_heads": self.count("num_attention_heads"),
            "num_kv_heads": self.count("num_key_value_heads"),
            "head_dim": self.count("head_dim", 256),
            "vocab_size": self.count("vocab_size"),
            "layer_types": kinds,
            "rms_norm_eps": self.number(self.text, "rms_norm_eps", 1e-6),
            "norm_style": "gemma",
            "rope_theta": theta,
            "partial_rotary_factor": rotary,
            "tie_word_embeddings": False,
            "max_position_embeddings": self.count("max_position_embeddings", 32768),
            "linear_conv_kernel_dim": self.count("linear_conv_kernel_dim", 4),
            "linear_num_key_heads": self.count("linear_num_key_heads", 16),
            "linear_num_value_heads": self.count("linear_num_value_heads", 32),
            "linear_key_head_dim": self.count("linear_key_head_dim", 128),
            "linear_value_head_dim": self.count("linear_value_head_dim", 128),
        }
        self.check(arch)
        if "LinearAttention" in kinds:
            arch["linear_core"] = {
                "kind": "gated_delta_net",
                "num_heads": arch["linear_num_value_heads"],
                "value_head_dim": arch["linear_value_head_dim"],
            }
        return arch

    def rope(self) -> tuple[float, float]:
        """(theta, share of the head that rotates): `rope_parameters` wins over the top level."""
        for key in ("rope_parameters", "rope_scaling"):
            value = self.text.get(key)
            if value is not None and not isinstance(value, dict):
                raise FormatError(f"{self.where}: {key} is {type(value).__name__}, expected an object")
        inner = self.text.get("rope_parameters") or self.text.get("rope_scaling") or {}
        nested = [key for key, value in inner.items() if isinstance(value, dict)]
        if nested:
            raise FormatError(f"{self.where}: rope parameters by layer type ({nested[0]}) are not supported")
        self.only(inner, "type", "default")
        self.only(inner, "rope_type", "default")
        outer = {
            "rope_theta": self.number(self.text, "rope_theta", 10_000.0),
            "partial_rotary_factor": self.number(self.text, "partial_rotary_factor", 0.25),
        }
        theta, rotary = (self.number(inner, key, outer[key]) for key in outer)
        if rotary > 1:
            raise FormatError(f"{self.where}: partial_rotary_factor is {rotary}, expected at most 1")
        return theta, rotary

    def layer_types(self) -> list[str]:
        layers = self.count("num_hidden_layers")
        if layers > _MAX_LAYERS:
            raise FormatError(f"{self.where}: num_hidden_layers is {layers}, expected at most {_MAX_LAYERS}")
        kinds = self.text.get("layer_types")
        if kinds is None:
            every = self.count("full_attention_interval", 4)
            kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise FormatError(
                f"{self.where}: layer_types is not a list of num_hidden_layers = {layers} entries"
            )
        for kind in kinds:
            if not isinstance(kind, str) or kind not in _LAYER_TYPES:
                raise FormatError(
                    f"{self.where}: layer_types holds {kind!r:.80}, expected {' or '.join(_LAYER_TYPES)}"
                )
        return [_LAYER_TYPES[kind] for kind in kinds]

    def check(self, arch: Mapping[str, Any]) -> None:
        for many, few in (
            ("num_attention_heads", "num_kv_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if arch[many] % arch[few]:
                raise FormatError(f"{self.where}: {many} {arch[many]} is not a multiple of {few} {arch[few]}")
        rotary = int(arch["head_dim"] * arch["partial_rotary_factor"])
        if rotary < 2 or rotary % 2 or rotary > arch["head_dim"]:
            raise FormatError(
                f"{self.where}: {rotary} rotary dimensions of {arch['head_dim']}, expected an even number"
            )


def expected_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model of this architecture, in file order."""
    hidden, vocab = arch["hidden_size"], arch["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {EMBEDDINGS: (vocab, hidden)}
    for i, kind in enumerate(arch["layer_types"]):
        mixer = _gdn_shapes(arch) if kind == "LinearAttention" else _attention_shapes(arch)
        for tail, shape in {**_norm_shapes(hidden), **mixer, **_mlp_shapes(arch)}.items():
            shapes[f"model.layers.{i}.{tail}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not arch["tie_word_embeddings"]:
        shapes[HEAD] = (vocab, hidden)
    return shapes


def _norm_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    return {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _mlp_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width = arch["hidden_size"], arch["intermediate_size"]
    return {
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }


def _attention_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim = arch["hidden_size"], arch["head_dim"]
    q, kv = arch["num_attention_heads"] * dim, arch["num_kv_heads"] * dim
    return {
        "self_attn.q_proj.weight": (2 * q, hidden),  # query and output gate
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }


def _gdn_shapes(arch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, dim = arch["hidden_size"], arch["linear_num_value_heads"], arch["linear_value_head_dim"]
    values = heads * dim
    channels = 2 * arch["linear_num_key_heads"] * arch["linear_key_head_dim"] + values
    return {
        "linear_attn.in_proj_qkv.weight": (channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (channels, 1, arch["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }
