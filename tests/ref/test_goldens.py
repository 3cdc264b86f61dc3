"""The float64 net against the bundled model's golden values (computed by transformers in float32)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.ref import head
from nvgpu.ref.blocks import Grads
from nvgpu.ref.net import Forward, RefNet
from tests.ref.checkpoint import read_checkpoint
from tests.ref.differences import relative

Array = np.ndarray[Any, Any]
FOLDER = Path(__file__).parents[2] / "examples" / "tiny-qwen3.5"
PERTURBED = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
MODULES = ("linear_attn", "self_attn", "mlp", "input_layernorm", "post_attention_layernorm")


@pytest.fixture(scope="module")
def golden() -> dict[str, Array]:
    with np.load(FOLDER / "golden.npz") as data:
        return dict(data)


@pytest.fixture(scope="module")
def net() -> RefNet:
    config = json.loads((FOLDER / "config.json").read_text())
    return RefNet.build(read_checkpoint(FOLDER / "model.safetensors"), config)


@pytest.fixture(scope="module")
def forward(net: RefNet, golden: dict[str, Array]) -> Forward:
    return net.forward(golden["ids"])


def body_gains(net: RefNet) -> Iterator[str]:
    """The perturbed gains, in the order of the torch module's parameters."""
    for i in range(len(net.arch.linear_layers)):
        names = [n for n in net.weights if n.startswith(f"model.layers.{i}.") and n.endswith(PERTURBED)]
        yield from sorted(names, key=lambda n: (MODULES.index(n.split(".")[3]), "k_norm" in n))
    yield "model.norm.weight"


@pytest.fixture(scope="module")
def student_step(net: RefNet, golden: dict[str, Array]) -> tuple[float, Grads]:
    """KL of the golden's perturbed student to its targets, and all gradients."""
    perturbed = {}
    for j, name in enumerate(body_gains(net)):
        gain = net.weights[name]
        assert isinstance(gain, np.ndarray)
        perturbed[name] = gain + 0.05 * np.sin(0.7 * np.arange(len(gain)) + j)
    assert len(perturbed) == 11
    student = net.with_weights(perturbed)
    return student.loss_and_grads(golden["ids"], golden["topk_ids"], golden["topk_p"])


def test_hidden_states(forward: Forward, golden: dict[str, Array]) -> None:
    assert len(forward.hidden) == 5
    for i, state in enumerate(forward.hidden):
        assert np.abs(state - golden[f"hidden_{i}"]).max() < 1e-3, i


def test_logits_and_nll(forward: Forward, golden: dict[str, Array]) -> None:
    tail = golden["logits_tail"]
    assert np.abs(forward.logits[:, -tail.shape[1] :] - tail).max() < 1e-3
    rows = forward.logits[:, :-1].reshape(-1, forward.logits.shape[-1])
    nll = head.nll(rows, golden["ids"][:, 1:].reshape(-1))
    assert abs(nll.mean() - golden["nll"].mean(dtype=np.float64)) < 1e-4


def test_topk(forward: Forward, golden: dict[str, Array]) -> None:
    K = golden["topk_ids"].shape[-1]
    logits = forward.logits.reshape(-1, forward.logits.shape[-1])
    ids, p = head.topk(logits, K)
    expected = golden["topk_ids"].reshape(-1, K).astype(np.int64)
    assert np.abs(p - golden["topk_p"].reshape(-1, K)).max() < 1e-5
    at = {
        n: np.take_along_axis(logits, i.astype(np.int64), axis=1)
        for n, i in (("own", ids), ("golden", expected))
    }
    p_of_golden_ids = p * np.exp(at["golden"] - at["own"])
    assert np.abs(p_of_golden_ids - p).max() < 1e-5  # ids differ only where probabilities tie
    assert (ids != expected).mean() < 1e-3


def test_kl(student_step: tuple[float, Grads], golden: dict[str, Array]) -> None:
    kl = float(golden["kl"])
    assert abs(student_step[0] - kl) < 1e-5 + 1e-4 * kl


def test_gradients(student_step: tuple[float, Grads], golden: dict[str, Array]) -> None:
    expected = {name.removeprefix("grad:"): g for name, g in golden.items() if name.startswith("grad:")}
    assert len(expected) == 23
    for name, grad in expected.items():
        assert relative(student_step[1][name], grad) < 1e-3, name
