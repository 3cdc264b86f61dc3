"""Linears on the device against the float64 definitions, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.linear import BlrLinear, BlrPath, DenseLinear, Linear, transposed_words, words_from_bytes
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import linear
from nvgpu.ops.tolerance import matmul
from nvgpu.ref import linear as ref

Array = np.ndarray[Any, Any]


class Bench:
    """Runs a linear and holds its result and its gradients against the reference."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ws = Workspace(device)
        self.made: list[Buffer] = []

    def upload(self, values: Array, dtype: str = "f32") -> Buffer:
        self.made.append(self.device.upload("values", values, dtype))
        return self.made[-1]

    def run(self, layer: Linear, x: Array, dy: Array, acc: bool) -> tuple[Array, Array]:
        bx, bdy = self.upload(x), self.upload(dy)
        y = self.upload(np.full((len(x), layer.out_features), np.nan, np.float32))
        dx = self.upload(np.full(x.shape, 1.0 if acc else np.nan, np.float32))
        with Recorder(self.device) as rec:
            layer.forward(rec, self.ws, bx, y)
            layer.backward(rec, self.ws, bx, bdy, dx, acc)
        return y.read(), dx.read()

    def close(self) -> None:
        self.ws.free()
        self.device.free(*self.made)


@pytest.fixture
def bench(device: Device) -> Any:
    bench = Bench(device)
    yield bench
    bench.close()


def close(got: Array, want: Array, terms: float, mag: Array | None = None) -> None:
    """Within the matmul class for sums of `terms` terms of the given size."""
    size = np.full(want.shape, np.abs(want).max()) if mag is None else mag
    assert (np.abs(got - want) <= matmul("1").bound(want, size, terms)).all()


@pytest.mark.parametrize("acc", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_dense(bench: Bench, dtype: str, acc: bool) -> None:
    rng = np.random.default_rng(1)
    w = rng.standard_normal((37, 44)).astype(np.float16).astype(np.float32)
    x, dy = (rng.standard_normal((19, n)).astype(np.float32) for n in (44, 37))
    y, dx = bench.run(DenseLinear("w", "role", bench.upload(w, dtype)), x, dy, acc)
    close(y, ref.matmul_nt(x, w), 44, np.abs(x) @ np.abs(w).T)
    close(dx, ref.matmul_nn(dy, w) + acc, 37, np.abs(dy) @ np.abs(w) + acc)


def test_f16_storage_changes_no_bit(bench: Bench) -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal((36, 44)).astype(np.float16).astype(np.float32)
    x, dy = (rng.standard_normal((19, n)).astype(np.float32) for n in (44, 36))
    full, half = (
        bench.run(DenseLinear("w", "role", bench.upload(w, kind)), x, dy, False) for kind in ("f32", "f16")
    )
    assert all(np.array_equal(a, b) for a, b in zip(full, half, strict=True))


@pytest.mark.parametrize("columns", [200, 203])
def test_pieces_give_the_bits_of_the_whole(bench: Bench, columns: int) -> None:
    """A head's slices: results side by side in a wide buffer, then its gradient summed up slice by slice."""
    rng = np.random.default_rng(columns)
    w = rng.standard_normal((columns, 40)).astype(np.float32)
    x = bench.upload(rng.standard_normal((21, 40)))
    whole, pieces = (bench.upload(np.full((21, columns), np.nan, np.float32)) for _ in range(2))
    grad, grad_pieces = (bench.upload(np.zeros((21, 40), np.float32)) for _ in range(2))
    parts = [(first, bench.upload(w[first : first + 64])) for first in range(0, columns, 64)]
    with Recorder(bench.device) as rec:
        linear.matmul_nt(rec, x=x, w=bench.upload(w), y=whole)
        for first, part in parts:
            linear.matmul_nt_into(rec, x=x, w=part, y=pieces, y0=first)
        linear.matmul_nn(rec, x=whole, w=bench.made[-1], y=grad)
        for first, part in parts:
            linear.matmul_nn_acc(rec, x=whole, w=part, y=grad_pieces, x0=first)
    assert np.array_equal(whole.read(), pieces.read())
    assert np.array_equal(grad.read(), grad_pieces.read())


def random_path(rng: np.random.Generator, m: int, n: int, r: int) -> ref.Path:
    h, l, g = (rng.standard_normal(size).astype(np.float32) for size in (m, r, n))
    u, v = (ref.pack_signs(rng.choice([-1.0, 1.0], shape)) for shape in ((m, r), (r, n)))
    return h, l, g, u, v


def padded(path: ref.Path, rp: int) -> ref.Path:
    """Rank padded to `rp`: l = 0, no sign set."""
    h, l, g, u, v = path
    wide_v = np.zeros((rp, v.shape[1]), np.uint32)
    wide_v[: len(v)] = v
    wide_u = np.zeros((len(u), rp // 32), np.uint32)
    wide_u[:, : u.shape[1]] = u
    return h, np.pad(l, (0, rp - len(l))), g, wide_u, wide_v


@pytest.mark.parametrize("acc", [False, True])
@pytest.mark.parametrize(("m", "n", "r", "paths"), [(24, 40, 8, 1), (136, 136, 40, 1), (67, 136, 72, 2)])
def test_blr(bench: Bench, m: int, n: int, r: int, paths: int, acc: bool) -> None:
    rng = np.random.default_rng(m * n)
    x, dy = (rng.standard_normal((33, size)).astype(np.float32) for size in (n, m))
    terms = [random_path(rng, m, n, r) for _ in range(paths)]
    rp = -(-r // 32) * 32
    loaded, grads = [], []
    for path in terms:
        h, l, g, u, v = padded(path, rp)
        made = [bench.upload(np.zeros(size, np.float32)) for size in (m, rp, n)]
        grads.append(made)
        scales = [bench.upload(s) for s in (h, l, g)]
        signs = [bench.upload(s, "u32") for s in (u, v)]
        loaded.append(BlrPath(*signs, *scales, *made))
    y, dx = bench.run(BlrLinear("w", "role", m, n, loaded), x, dy, acc)
    want_dx, want_grads = ref.blr_bwd(x, terms, dy)
    close(y, ref.blr_fwd(x, terms), n + r)
    close(dx, want_dx + acc, m + r)
    for made, (dh, dl, dg) in zip(grads, want_grads, strict=True):
        for buffer, want in zip(made, (dh, dl, dg), strict=True):
            close(buffer.read()[: len(want)], want, 33 + n + r)


def test_blr_from_transposed_signs_gives_the_same(bench: Bench) -> None:
    rng = np.random.default_rng(5)
    m, n, rp = 72, 40, 64
    x, dy = (rng.standard_normal((33, size)).astype(np.float32) for size in (n, m))
    h, l, g, u, v = padded(random_path(rng, m, n, 48), rp)
    results = []
    for turned in ({}, {"ut": transposed_words(u, rp), "vt": transposed_words(v, n)}):
        grads = [bench.upload(np.zeros(size, np.float32)) for size in (m, rp, n)]
        parts = [bench.upload(s, "u32") for s in (u, v)] + [bench.upload(s) for s in (h, l, g)]
        path = BlrPath(*parts, *grads, **{k: bench.upload(w, "u32") for k, w in turned.items()})
        outs = bench.run(BlrLinear("w", "role", m, n, [path]), x, dy, False)
        results.append([*outs, *(grad.read() for grad in grads)])
    for plain, turned_one in zip(*results, strict=True):
        close(turned_one, plain.astype(np.float64), n + rp)


def test_transposed_words() -> None:
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (37, 70))
    words = ref.pack_signs(signs)
    assert np.array_equal(transposed_words(words, 70), ref.pack_signs(signs.T))


def test_words_keep_the_bytes() -> None:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], (5, 40))
    packed = np.packbits(signs > 0, axis=1, bitorder="little")
    words = words_from_bytes(packed, 8, 64)
    assert words.shape == (8, 2)
    assert np.array_equal(ref.unpack_signs(words[:5], 40), signs)
    assert not words[5:].any() and not (words[:, 1] >> 8).any()
