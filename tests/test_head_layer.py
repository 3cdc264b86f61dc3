"""The head and the embedding against the float64 reference, whole and in forced slices and chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nvgpu.errors import InputError
from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.embedding import Embedding
from nvgpu.layers.head import Head
from nvgpu.layers.workspace import Workspace
from nvgpu.ref import head as ref

Array = np.ndarray[Any, Any]

N, C, V = 150, 96, 3001
TINY = {"slice_bytes": 4 * C * 700, "logits_bytes": 4 * V * 64}  # 5 slices of f32 weights, 3 chunks of rows


@dataclass(frozen=True)
class Bench:
    """A device's recorder and workspace, and one head's inputs."""

    rec: Recorder
    ws: Workspace
    hidden: Array
    weights: Array

    def upload(self, name: str, values: Array, dtype: str = "f32") -> Buffer:
        buffer = self.ws.buf(f"test.{name}", values.shape, dtype)
        buffer.write(values)
        return buffer

    def read(self, buffer: Buffer) -> Array:
        self.rec.flush()
        return buffer.read()


@pytest.fixture
def bench(device: Device) -> Iterator[Bench]:
    rng = np.random.default_rng(7)
    hidden = rng.standard_normal((N, C)).astype(np.float32)
    weights = (0.3 * rng.standard_normal((V, C))).astype(np.float16).astype(np.float32)
    ws = Workspace(device)
    yield Bench(Recorder(device), ws, hidden, weights)
    ws.free()


@pytest.fixture(params=["whole", "cut", "whole f16", "cut f16"])
def head(request: pytest.FixtureRequest, device: Device, bench: Bench) -> Iterator[Head]:
    made = make(device, bench.weights, request.param)
    yield made
    made.free()


def make(device: Device, weights: Array, kind: str) -> Head:
    return Head(device, weights, half="f16" in kind, **(TINY if "cut" in kind else {}))


def target(logits: Array, k: int, seed: int = 1) -> tuple[Array, Array]:
    """Distinct ids u32 and probabilities `[N, k]`, some of them 0."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.choice(logits.shape[1], k, replace=False) for _ in logits]).astype(np.uint32)
    p = rng.exponential(1.0, ids.shape)
    p[:, 3::5] = 0.0
    return ids, (p / p.sum(axis=1, keepdims=True)).astype(np.float32)


def close(got: Array, want: Array, rel: float = 2e-6) -> None:
    """Within `rel` of the largest value."""
    assert np.abs(got - want).max() <= rel * np.abs(want).max()


def test_tiny_budgets_cut(device: Device, bench: Bench) -> None:
    head = make(device, bench.weights, "cut")
    assert len(head._slices) == 5 and len(list(head._chunks(N))) == 3
    head.free()


def test_logits(bench: Bench, head: Head) -> None:
    got = head.logits(bench.rec, bench.ws, bench.upload("hidden", bench.hidden))
    close(got, ref.logits(bench.hidden, bench.weights))


@pytest.mark.parametrize("k", [1, 32, 64])
def test_topk(bench: Bench, head: Head, k: int) -> None:
    hidden = bench.upload("hidden", bench.hidden)
    logits = head.logits(bench.rec, bench.ws, hidden)
    ids, p = head.topk(bench.rec, bench.ws, hidden, k)
    want_ids, want_p = ref.topk(logits, k)
    assert np.array_equal(ids, want_ids)
    close(p, want_p)


def test_topk_gives_ties_to_the_lower_id(device: Device, bench: Bench) -> None:
    weights = bench.weights[np.arange(V) % 50]  # every logit 60 times
    head = make(device, weights, "cut")
    ids, p = head.topk(bench.rec, bench.ws, bench.upload("hidden", bench.hidden), 64)
    winner = np.argmax(ref.logits(bench.hidden, weights[:50]), axis=1)
    copies = 60 + (winner < V % 50)
    for row in range(N):
        assert np.array_equal(ids[row, : copies[row]], winner[row] + 50 * np.arange(copies[row]))
        assert np.all(p[row, : copies[row]] == p[row, 0])
    head.free()


def test_topk_refuses_what_it_cannot_give(bench: Bench, head: Head) -> None:
    hidden = bench.upload("hidden", bench.hidden)
    for k in (0, 257):
        with pytest.raises(InputError, match=f"top-k: found {k}, expected 1 to 256"):
            head.topk(bench.rec, bench.ws, hidden, k)
    bench.hidden[140, 3] = np.nan
    with pytest.raises(InputError, match=r"logits are not finite \(row 140 of 150\)"):
        head.topk(bench.rec, bench.ws, bench.upload("hidden", bench.hidden), 8)


@pytest.mark.parametrize("k", [1, 32, 64])
def test_loss_and_gradient(bench: Bench, head: Head, k: int) -> None:
    logits = ref.logits(bench.hidden, bench.weights)
    ids, p = target(logits, k)
    weight = np.random.default_rng(2).random(N).astype(np.float32)
    want, dlogits = ref.kl_topk(logits, ids, p, weight)

    hidden = bench.upload("hidden", bench.hidden)
    targets = bench.upload("ids", ids, "u32"), bench.upload("p", p)
    loss, dhidden = bench.ws.buf("test.loss", (N,)), bench.upload("dhidden", np.full((N, C), np.nan))
    head.loss_and_grad(bench.rec, bench.ws, hidden, *targets, bench.upload("weight", weight), loss, dhidden)
    close(bench.read(loss), want)
    close(bench.read(dhidden), dlogits @ bench.weights)

    alone = bench.ws.buf("test.loss_only", (N,))
    head.loss_only(bench.rec, bench.ws, hidden, *targets, alone)
    assert np.array_equal(bench.read(alone), bench.read(loss))


def test_evaluation(device: Device, bench: Bench, head: Head) -> None:
    rng = np.random.default_rng(3)
    teacher_weights = (0.3 * rng.standard_normal((V, 40))).astype(np.float32)
    teacher_hidden = rng.standard_normal((N, 40)).astype(np.float32)
    teacher = make(device, teacher_weights, "cut")
    targets = rng.integers(0, V, N).astype(np.uint32)
    hidden = bench.upload("hidden", bench.hidden)
    nll, kl = bench.ws.buf("test.nll", (N,)), bench.ws.buf("test.kl", (N,))
    head.nll(bench.rec, bench.ws, hidden, bench.upload("targets", targets, "u32"), nll)
    head.kl_full(bench.rec, bench.ws, hidden, teacher, bench.upload("teacher", teacher_hidden), kl)
    logits = ref.logits(bench.hidden, bench.weights)
    close(bench.read(nll), ref.nll(logits, targets))
    close(bench.read(kl), ref.kl_full(ref.logits(teacher_hidden, teacher_weights), logits))
    teacher.free()


def test_kl_to_itself_is_zero(bench: Bench, head: Head) -> None:
    hidden, kl = bench.upload("hidden", bench.hidden), bench.ws.buf("test.kl", (N,))
    head.kl_full(bench.rec, bench.ws, hidden, head, hidden, kl)
    assert np.all(bench.read(kl) == 0.0)


@pytest.mark.parametrize("storage", ["", " f16"])
def test_cuts_do_not_change_a_bit(device: Device, bench: Bench, storage: str) -> None:
    ids, p = target(np.empty((N, V)), 32)
    results = []
    for kind in ("whole", "cut"):
        head = make(device, bench.weights, kind + storage)
        hidden = bench.upload("hidden", bench.hidden)
        loss, dhidden = bench.ws.buf("test.loss", (N,)), bench.ws.buf("test.dhidden", (N, C))
        weight = bench.upload("weight", np.full(N, 1 / N, np.float32))
        targets = bench.upload("ids", ids, "u32"), bench.upload("p", p)
        head.loss_and_grad(bench.rec, bench.ws, hidden, *targets, weight, loss, dhidden)
        gradients = bench.read(loss), bench.read(dhidden)
        results.append((*gradients, *head.topk(bench.rec, bench.ws, hidden, 64)))
        head.free()
    for whole, cut in zip(*results, strict=True):
        assert np.array_equal(whole, cut)


def test_refuses_another_vocabulary_and_f16_overflow(device: Device, bench: Bench) -> None:
    head, other = make(device, bench.weights, "whole"), make(device, bench.weights[:3000], "whole")
    hidden, kl = bench.upload("hidden", bench.hidden), bench.ws.buf("test.kl", (N,))
    with pytest.raises(InputError, match="teacher: found a vocabulary of 3000, expected the student's 3001"):
        head.kl_full(bench.rec, bench.ws, hidden, other, hidden, kl)
    head.free()
    other.free()
    with pytest.raises(InputError, match="exceed the range of f16"):
        Head(device, np.full((4, 4), 1e5, np.float32), half=True)


# ── embedding ──


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_embedding_gathers_rows(device: Device, bench: Bench, dtype: type) -> None:
    table = bench.weights.astype(dtype)
    embedding = Embedding(device, table)
    rng = np.random.default_rng(4)
    for n in (3, 130, 5):
        ids = rng.integers(0, V, n).astype(np.uint32)
        ids[0] = V - 1
        x = bench.ws.buf("test.x", (n, C))
        embedding.forward(bench.rec, bench.ws, ids, x)
        assert np.array_equal(bench.read(x), table[ids].astype(np.float32))
    embedding.free()


def test_embedding_refuses_unknown_ids(device: Device, bench: Bench) -> None:
    embedding = Embedding(device, bench.weights)
    with pytest.raises(InputError, match="token id 3001: expected less than 3001"):
        embedding.forward(bench.rec, bench.ws, np.array([5, V], np.uint32), bench.ws.buf("test.x", (2, C)))
