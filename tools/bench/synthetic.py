"""Synthetic models of real shapes for benchmarks: seeded random weights, no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.encode.rank import choose_rank
from nvgpu.formats.blr import HEADER, payload_bytes
from nvgpu.formats.cmf import CmfWriter
from nvgpu.formats.codecs import Dtype
from nvgpu.model import names

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3.5-family model; every `full_every`-th layer has full attention."""

    layers: int = 24
    hidden: int = 1024
    intermediate: int = 3584
    vocab: int = 248320
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 256
    key_heads: int = 16
    value_heads: int = 16
    gdn_dim: int = 128
    taps: int = 4
    full_every: int = 4
    tied: bool = True

    def linear(self, layer: int) -> bool:
        return (layer + 1) % self.full_every != 0

    def arch(self) -> dict[str, Any]:
        kinds = ["LinearAttention" if self.linear(i) else "FullAttention" for i in range(self.layers)]
        return {
            "arch_name": "qwen3_5",
            "num_layers": self.layers,
            "layer_types": kinds,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "num_attention_heads": self.heads,
            "num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": 1e-6,
            "norm_style": "gemma",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.gdn_dim,
            "linear_value_head_dim": self.gdn_dim,
            "linear_conv_kernel_dim": self.taps,
        }

    def body(self, layer: int) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name and `[out, in]` of the linears that a compressed model holds as BLR."""
        c, f = self.hidden, self.intermediate
        if self.linear(layer):
            keys, values = self.key_heads * self.gdn_dim, self.value_heads * self.gdn_dim
            yield names.layer(layer, names.GDN["in_qkv"]), (2 * keys + values, c)
            yield names.layer(layer, names.GDN["in_z"]), (values, c)
            yield names.layer(layer, names.GDN["out"]), (c, values)
        else:
            wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
            for part, shape in (
                ("q", (2 * wide, c)),
                ("k", (narrow, c)),
                ("v", (narrow, c)),
                ("o", (c, wide)),
            ):
                yield names.layer(layer, names.ATTENTION[part]), shape
        for part, shape in (("gate", (f, c)), ("up", (f, c)), ("down", (c, f))):
            yield names.layer(layer, names.MLP[part]), shape

    def small(self, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of the tensors that always stay f16."""
        yield names.layer(layer, names.INPUT_NORM), (self.hidden,)
        yield names.layer(layer, names.POST_NORM), (self.hidden,)
        if not self.linear(layer):
            yield names.layer(layer, names.Q_NORM), (self.head_dim,)
            yield names.layer(layer, names.K_NORM), (self.head_dim,)
            return
        channels = (2 * self.key_heads + self.value_heads) * self.gdn_dim
        yield names.layer(layer, names.GDN["in_a"]), (self.value_heads, self.hidden)
        yield names.layer(layer, names.GDN["in_b"]), (self.value_heads, self.hidden)
        yield names.layer(layer, names.GDN_A_LOG), (self.value_heads,)
        yield names.layer(layer, names.GDN_DT_BIAS), (self.value_heads,)
        yield names.layer(layer, names.GDN_NORM), (self.gdn_dim,)
        yield names.layer(layer, names.GDN_CONV), (channels, 1, self.taps)


def write_model(path: Path, shape: Shape, *, bpw: float | None, seed: int = 0) -> None:
    """A CMF file of this shape: body linears as one-path BLR at `bpw`, or dense f16 where that is None."""
    rng = np.random.default_rng(seed)
    tensors: list[tuple[str, Dtype, tuple[int, ...]]] = [
        (names.EMBED, Dtype.F16, (shape.vocab, shape.hidden))
    ]
    for i in range(shape.layers):
        tensors += [(name, Dtype.F16, size) for name, size in shape.small(i)]
        body = Dtype.F16 if bpw is None else Dtype.BLR
        tensors += [(name, body, size) for name, size in shape.body(i)]
    tensors.append((names.FINAL_NORM, Dtype.F16, (shape.hidden,)))
    if not shape.tied:
        tensors.append((names.LM_HEAD, Dtype.F16, (shape.vocab, shape.hidden)))
    with CmfWriter(path, {"arch": shape.arch()}, tensors, None) as out:
        for name, dtype, size in tensors:
            if dtype == Dtype.BLR:
                assert bpw is not None
                out.write(name, _blr(rng, name, *size, bpw))
            else:
                out.write(name, _values(rng, name, size))


def _values(rng: np.random.Generator, name: str, size: tuple[int, ...]) -> Array:
    if len(size) > 1:
        return (rng.standard_normal(size, np.float32) * (1.0 / np.sqrt(size[-1]))).astype(np.float16)
    if name.endswith("linear_attn.norm.weight"):
        return np.ones(size, np.float16)
    return (rng.standard_normal(size) * 0.2).astype(np.float16)


def _blr(rng: np.random.Generator, name: str, m: int, n: int, bpw: float) -> bytes:
    """One path with random signs, scaled so that outputs keep the inputs' size."""
    r = choose_rank(name, m, n, bpw, 1)
    h, g, l = (
        (scale * (1 + 0.1 * rng.standard_normal(size))).astype("<f2")
        for scale, size in ((n**-0.5, m), (1.0, n), (r**-0.5, r))
    )
    data = (
        HEADER.pack(0x4C, 1, 1, 0, r, m, n)
        + h.tobytes()
        + g.tobytes()
        + l.tobytes()
        + rng.bytes((m * r + r * n) // 8)
    )
    assert len(data) == payload_bytes(m, n, r, 1)
    return data
