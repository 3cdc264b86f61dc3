"""Metric-only distillation in float64: h, l, g of every binary low-rank path and the RMSNorm gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nvgpu.ref import optim
from nvgpu.ref.blocks import Array, Weight, path_param
from nvgpu.ref.linear import Path
from nvgpu.ref.net import FINAL_NORM, RefNet

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
FLOOR = 0.05  # of a scale vector's RMS as loaded

GAINS = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
)


class Batch(NamedTuple):
    """ids [B, T]; the teacher's top-k ids and probabilities [B, T, K]; row weights [B, T], None for equal."""

    ids: Array
    topk_ids: Array
    topk_p: Array
    row_weight: Array | None = None


class TrainRun(NamedTuple):
    """Per step: the loss before the update and the gradient norm before clipping; then the trained net."""

    losses: list[float]
    grad_norms: list[float]
    net: RefNet


def learning_rate(peak: float, step: int, total: int) -> float:
    """Rate of `step` (from 1): linear warm-up over max(1, total // 50) steps, then half a cosine to 0."""
    warm = max(1, total // 50)
    if step <= warm:
        return peak * step / warm
    return peak * 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warm) / (total - warm))))


def trainable(net: RefNet) -> dict[str, Array]:
    """The trained vectors by parameter name: gains, and the scales of every BLR path."""
    found: dict[str, Array] = {}
    for name, weight in net.weights.items():
        if isinstance(weight, list):
            for i, path in enumerate(weight):
                found |= {path_param(name, i, part): path["hlg".index(part)] for part in "hlg"}
        elif name == FINAL_NORM or name.endswith(GAINS):
            found[name] = weight
    return found


def with_params(net: RefNet, params: dict[str, Array]) -> RefNet:
    """The net with its trained vectors replaced by `params`, which holds them all."""
    weights: dict[str, Weight] = {}
    for name, weight in net.weights.items():
        if isinstance(weight, list):
            weights[name] = [_with_scales(params, name, i, path) for i, path in enumerate(weight)]
        elif name in params:
            weights[name] = params[name]
    return net.with_weights(weights)


def _with_scales(params: dict[str, Array], name: str, index: int, path: Path) -> Path:
    h, l, g = (params[path_param(name, index, part)] for part in "hlg")
    return h, l, g, path[3], path[4]


def train_steps(
    net: RefNet, batches: Sequence[Batch | tuple[Any, ...]], *, lr: float, clip: float, total: int
) -> TrainRun:
    """One step a batch, of a schedule of `total` steps: gradients clipped to a global norm of `clip`, Adam.

    The scales h, l, g move relative to max(|w|, floor).
    """
    params = trainable(net)
    floors = {n: FLOOR * float(np.sqrt(np.mean(w * w))) if "#" in n else 0.0 for n, w in params.items()}
    moments = {n: (np.zeros_like(w), np.zeros_like(w)) for n, w in params.items()}
    losses, norms = [], []
    for step, batch in enumerate(batches, 1):
        loss, grads = net.loss_and_grads(*batch)
        norm = math.sqrt(sum(optim.sumsq(grads[n]) for n in params))
        rate, gmul = learning_rate(lr, step, total), min(1.0, clip / norm) if norm > 0 else 1.0
        for n, w in params.items():
            state = (w, grads[n], *moments[n], np.ones_like(w), np.full_like(w, floors[n]))
            params[n], m1, m2 = optim.adam(*state, lr=rate, step=step, b1=BETA1, b2=BETA2, eps=EPS, gmul=gmul)
            moments[n] = (m1, m2)
        net = with_params(net, params)
        losses.append(loss)
        norms.append(norm)
    return TrainRun(losses, norms, net)
