"""The whole net in float64: forward, distillation loss and every gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nvgpu.ref import attention, head
from nvgpu.ref.blocks import (
    Array,
    AttentionSaved,
    Dims,
    GdnDims,
    GdnSaved,
    Grads,
    MlpSaved,
    Scope,
    Weight,
    attention_bwd,
    attention_fwd,
    gdn_bwd,
    gdn_fwd,
    mlp_bwd,
    mlp_fwd,
)
from nvgpu.ref.linear import Path

EMBED, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class Arch:
    """Geometry; `linear_layers[i]` says that layer i is GatedDeltaNet; `gemma` norms multiply by 1 + w."""

    linear_layers: tuple[bool, ...]
    heads: int
    kv_heads: int
    inv_freq: tuple[float, ...]
    eps: float
    tied: bool
    gdn: GdnDims
    gemma: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Arch:
        """From a Hugging Face text config: `rope_parameters` wins over top-level values.

        Where both are silent, theta is 1e4 and the rotary factor 0.25, as in transformers.
        """
        rope = config.get("rope_parameters") or {}
        theta = rope.get("rope_theta", config.get("rope_theta", 1e4))
        factor = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25))
        rotary = int(config["head_dim"] * factor)
        return cls(
            linear_layers=tuple(kind == "linear_attention" for kind in config["layer_types"]),
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            inv_freq=tuple(float(theta) ** (-2.0 * i / rotary) for i in range(rotary // 2)),
            eps=config["rms_norm_eps"],
            tied=config["tie_word_embeddings"],
            gdn=GdnDims(
                Hk=config["linear_num_key_heads"],
                Hv=config["linear_num_value_heads"],
                Dk=config["linear_key_head_dim"],
                Dv=config["linear_value_head_dim"],
            ),
        )

    def dims(self, B: int, T: int) -> Dims:
        table = attention.rope_table(T, np.array(self.inv_freq))
        return Dims(B, T, self.heads, self.kv_heads, self.eps, self.gemma, table, self.gdn)


class Forward(NamedTuple):
    """hidden: embeddings, the outputs of all layers but the last, and of the final norm, each [B, T, C]."""

    hidden: list[Array]
    logits: Array  # [B, T, V]


class _LayerSaved(NamedTuple):
    x: Array
    rstd1: Array
    mixer: AttentionSaved | GdnSaved
    x2: Array
    rstd2: Array
    mlp: MlpSaved


@dataclass(frozen=True)
class RefNet:
    """`weights` by Hugging Face name, float64; a linear is a dense array [out, in] or a list of BLR paths."""

    arch: Arch
    weights: dict[str, Weight]

    @classmethod
    def build(cls, tensors: Mapping[str, Array | list[Path]], arch: Arch | Mapping[str, Any]) -> RefNet:
        """From arrays of any float dtype and lists of BLR paths; `arch` may be a Hugging Face config."""
        arch = arch if isinstance(arch, Arch) else Arch.from_config(arch)
        return cls(arch, {name: _weight(value) for name, value in tensors.items()})

    @property
    def head_name(self) -> str:
        return EMBED if self.arch.tied else LM_HEAD

    def with_weights(self, weights: Mapping[str, Weight]) -> RefNet:
        """A net with some weights replaced."""
        return replace(self, weights={**self.weights, **weights})

    def forward(self, ids: Array) -> Forward:
        """ids [B, T]."""
        hidden, final, _, _ = self._layers(ids)
        states = [h.reshape(*ids.shape, -1) for h in (*hidden[:-1], final)]
        out = head.logits(final, Scope(self.weights).array(self.head_name))
        return Forward(states, out.reshape(*ids.shape, -1))

    def loss(self, ids: Array, topk_ids: Array, topk_p: Array, row_weight: Array | None = None) -> float:
        """Mean of KL(topk_p ‖ net) over the rows, weighted by `row_weight` [B, T]; targets are [B, T, K]."""
        logits = self.forward(ids).logits
        return self._loss(logits.reshape(ids.size, -1), topk_ids, topk_p, row_weight)[0]

    def loss_and_grads(
        self, ids: Array, topk_ids: Array, topk_p: Array, row_weight: Array | None = None
    ) -> tuple[float, Grads]:
        """The loss, and its gradient at every weight, by name; `NAME#0.h` is the scale h of NAME's path 0."""
        scope = Scope(self.weights, grads=(grads := Grads()))
        # 1. embeddings and layers
        hidden, final, rstd, saved = self._layers(ids)
        # 2. head and loss
        w_head = scope.array(self.head_name)
        loss, dlogits = self._loss(head.logits(final, w_head), topk_ids, topk_p, row_weight)
        # backward, 2
        scope.add(self.head_name, dlogits.T @ final)
        dims = self.arch.dims(*ids.shape)
        dx = scope.rms_norm_bwd(FINAL_NORM, hidden[-1], rstd, dlogits @ w_head, dims)
        # backward, 1
        for i in reversed(range(len(saved))):
            dx = self._layer_bwd(scope.below(f"model.layers.{i}."), i, saved[i], dx, dims)
        dembed = np.zeros_like(scope.array(EMBED))
        np.add.at(dembed, ids.reshape(-1).astype(np.int64), dx)
        scope.add(EMBED, dembed)
        return loss, grads

    def _loss(
        self, logits: Array, topk_ids: Array, topk_p: Array, row_weight: Array | None
    ) -> tuple[float, Array]:
        weight = np.ones(len(logits)) if row_weight is None else np.asarray(row_weight, np.float64)
        weight = (weight / weight.sum()).reshape(-1)
        K = topk_ids.shape[-1]
        rows, dlogits = head.kl_topk(logits, topk_ids.reshape(-1, K), topk_p.reshape(-1, K), weight)
        return float(rows @ weight), dlogits

    def _layers(self, ids: Array) -> tuple[list[Array], Array, Array, list[_LayerSaved]]:
        """(embeddings and layer outputs [N, C], the final norm's output, its rstd, what every layer kept)."""
        scope, dims = Scope(self.weights), self.arch.dims(*ids.shape)
        x = scope.array(EMBED)[ids.reshape(-1).astype(np.int64)]
        hidden, saved = [x], []
        for i in range(len(self.arch.linear_layers)):
            x, kept = self._layer_fwd(scope.below(f"model.layers.{i}."), i, x, dims)
            hidden.append(x)
            saved.append(kept)
        final, rstd = scope.rms_norm(FINAL_NORM, x, dims)
        return hidden, final, rstd, saved

    def _layer_fwd(self, w: Scope, index: int, x: Array, d: Dims) -> tuple[Array, _LayerSaved]:
        """x2 = x + mixer(norm1(x)); y = x2 + mlp(norm2(x2))."""
        n1, rstd1 = w.rms_norm("input_layernorm.weight", x, d)
        mixed: Array
        mixer: AttentionSaved | GdnSaved
        if self.arch.linear_layers[index]:
            mixed, mixer = gdn_fwd(w.below("linear_attn."), n1, d)
        else:
            mixed, mixer = attention_fwd(w.below("self_attn."), n1, d)
        x2 = x + mixed
        n2, rstd2 = w.rms_norm("post_attention_layernorm.weight", x2, d)
        y, mlp = mlp_fwd(w.below("mlp."), n2)
        return x2 + y, _LayerSaved(x, rstd1, mixer, x2, rstd2, mlp)

    def _layer_bwd(self, w: Scope, index: int, s: _LayerSaved, dy: Array, d: Dims) -> Array:
        """dx."""
        dn2 = mlp_bwd(w.below("mlp."), s.mlp, dy)
        dx2 = dy + w.rms_norm_bwd("post_attention_layernorm.weight", s.x2, s.rstd2, dn2, d)
        if isinstance(s.mixer, GdnSaved):
            dn1 = gdn_bwd(w.below("linear_attn."), s.mixer, dx2, d)
        else:
            dn1 = attention_bwd(w.below("self_attn."), s.mixer, dx2, d)
        return dx2 + w.rms_norm_bwd("input_layernorm.weight", s.x, s.rstd1, dn1, d)


def _weight(value: Array | list[Path]) -> Weight:
    if isinstance(value, list):
        return [(*(np.asarray(a, np.float64) for a in path[:3]), *path[3:]) for path in value]  # type: ignore[misc]
    return np.asarray(value, np.float64)
