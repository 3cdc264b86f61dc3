"""The whole float64 net against central differences, and its trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.ref import linear
from nvgpu.ref.net import RefNet
from nvgpu.ref.trainer import Batch, learning_rate, train_steps, trainable
from tests.random_model import make_config, make_tensors
from tests.ref.differences import central, relative, rng_of

Array = np.ndarray[Any, Any]
TWO_PATHS = ("q_proj", "in_proj_qkv", "down_proj")
DENSE = ("in_proj_a", "in_proj_b", "k_proj", "embed_tokens", "lm_head", "conv1d")
CONFIG = make_config(
    vocab_size=29,
    hidden_size=12,
    intermediate_size=14,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=10,
    linear_num_key_heads=1,
    linear_num_value_heads=3,
    linear_key_head_dim=6,
    linear_value_head_dim=5,
    rms_norm_eps=1e-3,
    rope_parameters={"rope_theta": 100.0, "partial_rotary_factor": 0.4},
)


def random_paths(rng: np.random.Generator, w: Array, paths: int, rank: int = 9) -> list[linear.Path]:
    """A random binary low-rank matrix of w's shape and about its size."""
    m, n = w.shape
    found = []
    for _ in range(paths):
        h, g = 1.0 + 0.2 * rng.standard_normal(m), 1.0 + 0.2 * rng.standard_normal(n)
        size = rng.uniform(0.5, 1.5, rank) * np.std(w) / np.sqrt(rank * paths)
        signs = [linear.pack_signs(rng.choice([-1.0, 1.0], shape)) for shape in ((m, rank), (rank, n))]
        found.append((h, size, g, signs[0], signs[1]))
    return found


def small_net(case: str, tied: bool) -> RefNet:
    """One GatedDeltaNet and one attention layer; most linears in one path, some in two, some dense."""
    rng = rng_of(case)
    config = {**CONFIG, "tie_word_embeddings": tied}
    tensors: dict[str, Any] = dict(make_tensors(config, seed=int(rng.integers(1000))))
    for name, w in tensors.items():
        if w.ndim == 2 and not any(part in name for part in DENSE):
            tensors[name] = random_paths(rng, w, 2 if any(part in name for part in TWO_PATHS) else 1)
    return RefNet.build(tensors, config)


def random_batch(case: str, B: int = 2, T: int = 7, K: int = 5) -> Batch:
    rng = rng_of(case)
    V = CONFIG["vocab_size"]
    ids = rng.integers(0, V, (B, T))
    topk_ids = np.argsort(rng.random((B, T, V)), axis=-1)[..., :K]
    p = rng.exponential(1.0, (B, T, K))
    return Batch(ids, topk_ids, p / p.sum(axis=-1, keepdims=True), rng.uniform(0.0, 2.0, (B, T)))


def arrays(net: RefNet) -> dict[str, Array]:
    """Everything that has a gradient, by the gradient's name; the arrays are the net's own."""
    dense = {n: w for n, w in net.weights.items() if isinstance(w, np.ndarray)}
    return dense | trainable(net)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_gradients(tied: bool) -> None:
    case = f"net-{tied}"
    net, batch, rng = small_net(case, tied), random_batch(case), rng_of(case)
    _, grads = net.loss_and_grads(*batch)
    named = arrays(net)
    assert grads.keys() == named.keys()
    for name, values in named.items():
        assert grads[name].shape == values.shape, name
        picked = rng.choice(values.size, min(values.size, 8), replace=False)
        numeric = central(lambda: net.loss(*batch), values, picked.tolist())
        assert relative(grads[name].reshape(-1)[picked], numeric) < 1e-5, name


def test_row_weights_are_normalised() -> None:
    net, batch = small_net("weights", False), random_batch("weights")
    assert batch.row_weight is not None
    scaled, grads = net.loss_and_grads(*batch[:3], 7.0 * batch.row_weight)
    assert np.isclose(scaled, net.loss(*batch), rtol=1e-12)
    zero = batch.row_weight.copy()
    zero[1] = 0.0
    rest = Batch(*(a[:1] for a in (*batch[:3], batch.row_weight)))
    assert np.isclose(net.loss(*batch[:3], zero), net.loss(*rest), rtol=1e-12)
    assert all(np.isfinite(g).all() for g in grads.values())


def test_windows_are_independent() -> None:
    net, ids = small_net("windows", False), random_batch("windows").ids
    both = net.forward(ids).logits
    for b in range(len(ids)):
        assert np.allclose(both[b : b + 1], net.forward(ids[b : b + 1]).logits, rtol=1e-10, atol=1e-12)
    shorter = net.forward(ids[:, :3]).logits
    assert np.allclose(both[:, :3], shorter, rtol=1e-10, atol=1e-12)


def test_learning_rate() -> None:
    assert [learning_rate(2.0, step, 100) for step in (1, 2)] == [1.0, 2.0]
    assert np.isclose(learning_rate(2.0, 51, 100), 1.0)
    assert learning_rate(2.0, 100, 100) == 0.0
    assert learning_rate(2.0, 1, 1) == 2.0
    rates = [learning_rate(1.0, step, 300) for step in range(1, 301)]
    assert np.argmax(rates) == 5 and all(np.diff(rates[5:]) < 0)


def test_first_step_moves_what_is_trained() -> None:
    net, batch = small_net("step", False), random_batch("step")
    before = {name: w.copy() for name, w in arrays(net).items()}
    grads = net.loss_and_grads(*batch)[1]
    run = train_steps(net, [batch], lr=1e-2, clip=1e9, total=10)
    after, trained = arrays(run.net), trainable(net)
    assert trained["model.layers.0.linear_attn.in_proj_z.weight#0.l"].min() > 0
    for name, start in before.items():
        assert np.array_equal(arrays(net)[name], start), name
        moved = start - after[name]
        step = 1e-2 * grads[name] / (np.abs(grads[name]) + 1e-8)  # Adam's first
        if name not in trained:
            assert not moved.any(), name
        elif "#" in name:
            floor = 0.05 * np.sqrt(np.mean(start**2))
            assert np.allclose(moved, step * np.maximum(np.abs(start), floor), rtol=1e-6), name
        else:
            assert np.allclose(moved, step, rtol=1e-6), name
    frozen = {"A_log", "dt_bias", "linear_attn.norm.weight", "conv1d.weight", "embed_tokens.weight"}
    assert not any(name.endswith(tuple(frozen)) for name in trained)


def test_training_lowers_the_loss() -> None:
    net, batch = small_net("train", False), random_batch("train")
    run = train_steps(net, [batch] * 10, lr=3e-2, clip=1.0, total=10)
    assert run.losses[0] == net.loss(*batch)
    assert run.losses[-1] < 0.9 * run.losses[0]


def test_clipping() -> None:
    net, batches = small_net("clip", False), [random_batch("clip-a"), random_batch("clip-b")]
    free = train_steps(net, batches, lr=1e-2, clip=1e9, total=100)
    same = train_steps(net, batches, lr=1e-2, clip=max(free.grad_norms) * 2, total=100)
    clipped = train_steps(net, batches, lr=1e-2, clip=1e-9, total=100)
    name = "model.norm.weight"
    assert np.array_equal(arrays(free.net)[name], arrays(same.net)[name])
    start, end = net.weights[name], clipped.net.weights[name]
    assert isinstance(start, np.ndarray) and isinstance(end, np.ndarray)
    assert np.abs(end - start).max() < 2e-3  # Adam's eps 1e-8 outweighs a gradient of at most 1e-9
