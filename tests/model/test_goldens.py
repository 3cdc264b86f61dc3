"""The net on the device against `transformers`' golden values of the bundled model (precision f32)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.formats.cmf import CmfFile
from nvgpu.gpu import Device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.ops import tolerance as tol

Golden = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def executor(device: Device, teacher: CmfFile, golden: Golden) -> Any:
    executor = Executor(Net(device, teacher, NetOptions(golden["ids"].shape[1], trainable=True)))
    yield executor
    executor.free()
    executor.net.free()


def test_hidden_states_logits_and_nll(executor: Executor, golden: Golden, record_property: Any) -> None:
    ids = golden["ids"].reshape(-1)
    hidden = executor.forward(ids)
    executor.rec.flush()
    layers = executor.net.geometry.num_layers
    found = [executor.layer_input(i, len(ids)).read() for i in range(layers)] + [hidden.read()]
    for i, values in enumerate(found):
        error = float(np.abs(values.reshape(golden[f"hidden_{i}"].shape) - golden[f"hidden_{i}"]).max())
        record_property(f"hidden_{i}", error)
        print(f"hidden_{i}: max abs error {error:.2e}")
        assert error <= tol.GOLDEN_HIDDEN, f"hidden_{i}"
    logits = executor.net.head.logits(executor.rec, executor.ws, hidden).reshape(*golden["ids"].shape, -1)
    error = float(np.abs(logits[:, -8:] - golden["logits_tail"]).max())
    print(f"logits_tail: max abs error {error:.2e}")
    assert error <= tol.GOLDEN_LOGITS
    targets = np.roll(golden["ids"], -1, axis=1).astype(np.uint32).reshape(-1)
    nll, _ = executor.evaluate(ids, targets, None)
    mean = nll.reshape(golden["ids"].shape)[:, :-1].astype(np.float64).mean()
    print(f"mean nll: {mean:.6f}, golden {golden['nll'].astype(np.float64).mean():.6f}")
    assert abs(mean - golden["nll"].astype(np.float64).mean()) <= tol.GOLDEN_NLL


def test_top_k(executor: Executor, golden: Golden) -> None:
    k = golden["topk_ids"].shape[-1]
    ids, p = executor.topk(golden["ids"].reshape(-1), k)
    want_ids, want_p = golden["topk_ids"].reshape(-1, k), golden["topk_p"].reshape(-1, k)
    differs = ids != want_ids
    gap = np.minimum(
        *(np.abs(np.diff(want_p, axis=1, prepend=np.inf)), np.abs(np.diff(want_p, axis=1, append=np.inf)))
    )
    print(
        f"top-{k}: {int(differs.sum())} ids differ of {ids.size}; p max abs error {np.abs(p - want_p).max():.2e}"
    )
    assert (gap[differs & (np.arange(k) < k - 1)] <= tol.GOLDEN_TIE).all()
    last = differs[:, -1]
    assert (np.abs(p[last, -1] - want_p[last, -1]) <= tol.GOLDEN_TIE).all()
    assert np.abs(p - want_p).max() <= tol.GOLDEN_HIDDEN


def perturb_gains(executor: Executor, golden: Golden) -> None:
    """w_i += 0.05·sin(0.7·i + j), j counting the gains in the order of `named_parameters()`."""
    net, order = executor.net, gains_in_order(executor.net)
    for j, name in enumerate(order):
        view = net.params.value(name)
        values = view.read()
        view.write(values + 0.05 * np.sin(0.7 * np.arange(len(values)) + j))


def gains_in_order(net: Net) -> list[str]:
    """Layers first, in module order (mixer before the layer norms), then the final norm."""
    from nvgpu.model import names

    order = []
    for i, linear in enumerate(net.geometry.linear_layers):
        tails = [] if linear else [names.Q_NORM, names.K_NORM]
        order += [names.layer(i, tail) for tail in (*tails, names.INPUT_NORM, names.POST_NORM)]
    return [*order, names.FINAL_NORM]


def test_kl_and_gradients_of_gains(executor: Executor, golden: Golden) -> None:
    perturb_gains(executor, golden)
    ids, k = golden["ids"].reshape(-1), golden["topk_ids"].shape[-1]
    rows = len(ids)
    loss = executor.step(
        ids,
        golden["topk_ids"].reshape(-1, k),
        golden["topk_p"].reshape(-1, k),
        np.full(rows, 1 / rows, np.float32),
    )
    kl, want = float(loss.mean(dtype=np.float64)), float(golden["kl"])
    print(f"kl: {kl:.7f}, golden {want:.7f}")
    assert abs(kl - want) <= tol.GOLDEN_KL_ABS + tol.GOLDEN_KL_REL * want
    grads = executor.net.params.unpack(executor.net.params.grads.read())
    worst = 0.0
    for name, grad in grads.items():
        expected = golden[f"grad:{name}"].astype(np.float64)
        error = float(np.linalg.norm(grad - expected) / np.linalg.norm(expected))
        print(f"grad {name}: relative L2 {error:.2e}")
        worst = max(worst, error)
    assert len(grads) == 11
    assert worst <= tol.GOLDEN_GRAD_REL_L2


def test_mixed_precision(device: Device, teacher: CmfFile, golden: Golden) -> None:
    """Weights, and on matrix units inputs, rounded to f16: the looser bars of `--precision mixed`."""
    executor = Executor(Net(device, teacher, NetOptions(golden["ids"].shape[1], trainable=True, mixed=True)))
    ids, k = golden["ids"].reshape(-1), golden["topk_ids"].shape[-1]
    hidden = executor.forward(ids)
    logits = executor.net.head.logits(executor.rec, executor.ws, hidden).reshape(*golden["ids"].shape, -1)
    last = hidden.read().reshape(golden["hidden_4"].shape)
    assert np.abs(last - golden["hidden_4"]).max() <= tol.MIXED_HIDDEN
    assert np.abs(logits[:, -8:] - golden["logits_tail"]).max() <= tol.MIXED_HIDDEN
    targets = np.roll(golden["ids"], -1, axis=1).astype(np.uint32).reshape(-1)
    nll, _ = executor.evaluate(ids, targets, None)
    found = nll.reshape(golden["ids"].shape)[:, :-1].mean(dtype=np.float64)
    assert abs(found - golden["nll"].mean(dtype=np.float64)) <= tol.MIXED_NLL
    perturb_gains(executor, golden)
    weight = np.full(len(ids), 1 / len(ids), np.float32)
    executor.step(ids, golden["topk_ids"].reshape(-1, k), golden["topk_p"].reshape(-1, k), weight)
    for name, grad in executor.net.params.unpack(executor.net.params.grads.read()).items():
        want = golden[f"grad:{name}"].astype(np.float64)
        error = np.linalg.norm(grad / executor.gscale - want)
        assert error <= tol.MIXED_GRAD_REL_L2 * np.linalg.norm(want), name
    executor.free()
    executor.net.free()
