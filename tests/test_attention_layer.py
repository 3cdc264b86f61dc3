"""The attention layer on the device against its float64 composition: output and every gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.attention import Attention
from nvgpu.layers.gain import Gain
from nvgpu.layers.linear import DenseLinear
from nvgpu.layers.workspace import Workspace
from nvgpu.ref import attention as ref
from nvgpu.ref.blocks import Dims, GdnDims, Grads, Scope, attention_bwd, attention_fwd

Array = np.ndarray[Any, Any]
REL_L2 = 2e-6  # a dozen f32 ops, each within a few units of 6e-8
ODD = {"B": 3, "T": 65, "C": 192, "H": 6, "KV": 2, "D": 32, "half": 4}
SHAPES = [
    ODD,
    {"B": 2, "T": 33, "C": 64, "H": 4, "KV": 1, "D": 64, "half": 16},
    {"B": 5, "T": 1, "C": 20, "H": 2, "KV": 2, "D": 256, "half": 32},
]


class Bench:
    """A layer of random weights on both sides."""

    def __init__(self, device: Device, shape: dict[str, int], gemma: bool, trains: bool = True) -> None:
        self.device, self.shape, self.ws = device, shape, Workspace(device)
        self.made: list[Buffer] = []
        rng = np.random.default_rng(7)
        B, T, C, H, KV, D, half = shape.values()
        sizes = {"q": (2 * H * D, C), "k": (KV * D, C), "v": (KV * D, C), "o": (C, H * D)}
        linears = {n: _f32(rng, s) * np.float32(1.5 / s[1] ** 0.5) for n, s in sizes.items()}
        gains = {n: 1 - gemma + 0.2 * _f32(rng, (D,)) for n in ("q_norm", "k_norm")}
        # the device's table, so that both sides rotate by the same angles
        table = ref.rope_table(T, 1e4 ** (-np.arange(half) / half)).astype(np.float32)
        self.weights = {f"{n}_proj.weight": w for n, w in linears.items()}
        self.weights |= {f"{n}.weight": w for n, w in gains.items()}
        self.dims = Dims(B, T, H, KV, 1e-6, gemma, table, GdnDims(1, 1, 1, 1))
        self.x, self.dy = _f32(rng, (B * T, C)), _f32(rng, (B * T, C))
        self.gains = {n: self.gain(w, trains) for n, w in gains.items()}
        self.layer = Attention(
            **{n: DenseLinear(n, n, self.upload(w)) for n, w in linears.items()},  # type: ignore[arg-type]
            **self.gains,  # type: ignore[arg-type]
            rope=self.upload(table),
            heads=H,
            kv_heads=KV,
            head_dim=D,
            eps=1e-6,
            gemma=gemma,
            window=T,
        )

    def upload(self, values: Array) -> Buffer:
        self.made.append(self.device.upload("values", values))
        return self.made[-1]

    def gain(self, values: Array, trains: bool) -> Gain:
        return Gain(self.upload(values), self.upload(np.ones_like(values)) if trains else None)

    def run(self) -> tuple[Array, Array]:
        """(y, dx)."""
        x, dy = self.upload(self.x), self.upload(self.dy)
        y, dx = (self.upload(np.full_like(self.x, np.nan)) for _ in range(2))
        with Recorder(self.device) as rec:
            saved = self.layer.forward(rec, self.ws, x, y)
            self.layer.backward(rec, self.ws, saved, x, dy, dx)
        return y.read(), dx.read()

    def reference(self) -> tuple[Array, Array, Grads]:
        scope = Scope({n: np.float64(w) for n, w in self.weights.items()}, grads=Grads())
        y, saved = attention_fwd(scope, np.float64(self.x), self.dims)
        dx = attention_bwd(scope, saved, np.float64(self.dy), self.dims)
        assert scope.grads is not None
        return y, dx, scope.grads

    def free(self) -> None:
        self.ws.free()
        self.device.free(*self.made)


def _f32(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def off(got: Array, want: Array) -> float:
    """Relative L2 distance."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.fixture(params=[(s, g) for s in SHAPES for g in (False, True)], ids=str)
def bench(device: Device, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(device, *request.param)
    yield bench
    bench.free()


def test_output_and_gradients(bench: Bench) -> None:
    y, dx = bench.run()
    want_y, want_dx, grads = bench.reference()
    assert off(y, want_y) < REL_L2
    assert off(dx, want_dx) < REL_L2
    for name, gain in bench.gains.items():
        assert gain.g is not None
        added = gain.g.read().astype(np.float64) - 1.0  # it accumulates onto what was there
        limit = REL_L2 * np.linalg.norm(grads[f"{name}.weight"]) + 2.0**-23 * np.sqrt(added.size)
        assert np.linalg.norm(added - grads[f"{name}.weight"]) < limit


def test_windows_are_independent_and_causal(device: Device) -> None:
    bench = Bench(device, ODD, gemma=True)
    before, _ = bench.run()
    changed = 65 + 40  # token 40 of the second window
    bench.x[changed] += 1.0
    after, _ = bench.run()
    differs = (before != after).any(axis=1)
    assert not differs[:changed].any()
    assert not differs[130:].any()
    assert differs[changed:130].all()
    bench.free()


def test_same_run_same_bytes(device: Device) -> None:
    bench = Bench(device, ODD, gemma=True)
    first, second = bench.run(), bench.run()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    bench.free()


def test_frozen_gains_need_no_gradient(device: Device) -> None:
    trained, frozen = (Bench(device, ODD, gemma=True, trains=t) for t in (True, False))
    assert trained.run()[1].tobytes() == frozen.run()[1].tobytes()
    trained.free()
    frozen.free()
