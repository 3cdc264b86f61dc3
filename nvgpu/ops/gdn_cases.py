"""Cases of the chunked recurrence's ops: their inputs, and the views that the references work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvgpu.ops.gdn import windows
from nvgpu.ops.table import Arrays, Case, Dims, case, cdiv, full_case
from nvgpu.ref import gdn_chunks as stages

CHUNK = 32  # tokens

_Array = np.ndarray[Any, Any]


def chunks(T: int) -> int:
    """Chunks of a window of T tokens."""
    return cdiv(T, CHUNK)


def _unit(scale: float) -> Callable[[np.random.Generator, Dims, tuple[int, ...]], _Array]:
    """Vectors of length `scale` (default of Dk: 1/sqrt(Dk) for q); every third token repeats the one before."""

    def make(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
        x = rng.standard_normal(shape) + 0.5
        x[2::3] = x[1::3][: len(x[2::3])]
        unit: _Array = x / np.linalg.norm(x, axis=-1, keepdims=True)
        return (scale or d.Dk**-0.5) * unit

    return make


def _log_decay(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Most states live long; some tokens forget all, some nothing."""
    log = -np.exp(rng.uniform(-7.0, 0.0, shape))
    log[rng.random(shape) < 0.02] = -200.0
    log[rng.random(shape) < 0.05] = 0.0
    return log


def _beta(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    beta = rng.random(shape)
    beta[rng.random(shape) < 0.1] = 1.0
    beta[rng.random(shape) < 0.05] = 0.0
    return beta


def _rates(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """What gdn_pairs gives besides the products."""
    heads = shape[:2]
    key = np.zeros((d.N // d.T, d.T, d.Hv, 1))
    gates = [windows(make(rng, d, heads), d) for make in (_log_decay, _beta)]
    return stages.gdn_pairs(key, key, *gates, chunk=d.L)[1].reshape(shape)


def add_pairs(a: Arrays, d: Dims) -> None:
    """Makes `pairs` fit k, q (where there is one) and rates."""
    k, rates = windows(a["k"], d), windows(a["rates"], d)
    q = windows(a["q"], d) if "q" in a else k
    a["pairs"] = stages.gdn_pairs(q, k, rates[..., 3], rates[..., 0], chunk=d.L)[0].reshape(a["pairs"].shape)


def _decaying(rng: np.random.Generator, d: Dims, shape: tuple[int, ...]) -> _Array:
    """Products inside the chunks, of the right triangle."""
    t = np.arange(d.N) % d.T % d.L
    triangles = np.stack([np.arange(d.L) < t[:, None], np.arange(d.L) <= t[:, None]], axis=1)
    values: _Array = 0.2 * rng.standard_normal(shape) * triangles[:, None]
    return values


INIT = {
    "q": _unit(0.0),
    "k": _unit(1.0),
    "log_decay": _log_decay,
    "beta": _beta,
    "rates": _rates,
    "pairs": _decaying,
    "dpairs": _decaying,
}


def _shape(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int, **group: int) -> dict[str, int]:
    return {"N": B * T, "T": T, "Hk": Hk, "Hv": Hv, "Dk": Dk, "Dv": Dv, "L": CHUNK, **group}


_SHAPES = (
    (1, 1, 1, 1, 4, 4),
    (2, 31, 1, 3, 8, 12),
    (1, 32, 1, 1, 64, 32),
    (2, 33, 2, 4, 32, 64),
    (1, 63, 1, 1, 32, 32),
    (1, 64, 1, 2, 32, 36),
    (1, 65, 1, 2, 128, 128),
    (1, 127, 1, 1, 36, 40),
    (2, 45, 1, 2, 160, 288),
)
_FULL = (8, 512, 16, 16, 128, 128)
CASES = (
    *(case(**_shape(*s)) for s in _SHAPES),
    case(**_shape(65537, 1, 1, 1, 4, 4)),
    full_case(**_shape(*_FULL)),
)


def _in_group(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int) -> dict[str, int]:
    """All scans but the first and the last, where there are as many."""
    scans = B * Hv
    return _shape(B, T, Hk, Hv, Dk, Dv, scan0=int(scans > 1), G=max(scans - 2, 1))


GROUP_CASES: tuple[Case, ...] = (
    *(case(**_in_group(*s)) for s in _SHAPES),
    case(**_shape(1, 65, 1, 2, 32, 32, scan0=0, G=2)),
    case(**_in_group(2, 77, 2, 4, 128, 36)),
    case(**_shape(65537, 1, 1, 1, 4, 4, scan0=0, G=65537)),
    full_case(**_shape(*_FULL, scan0=32, G=64)),
)


def _group(d: Dims) -> slice:
    return slice(d.scan0, d.scan0 + d.G)


def update(target: _Array, whole: _Array, d: Dims) -> _Array:
    """`target` [N, Hv, ...] with the group's scans taken from `whole` [B, T, Hv, ...]."""
    B = d.N // d.T
    in_group = np.zeros(B * d.Hv, bool)
    in_group[_group(d)] = True
    chosen = in_group.reshape(B, 1, d.Hv, *[1] * (whole.ndim - 3))
    return np.where(chosen, whole, target.reshape(whole.shape))


def all_scans(states: _Array, d: Dims) -> _Array:
    """`states` [G, NC, Dk, Dv] as [B, Hv, NC, Dk, Dv], zero outside the group."""
    B = d.N // d.T
    whole = np.zeros((B * d.Hv, *states.shape[1:]))
    whole[_group(d)] = states
    return whole.reshape(B, d.Hv, *states.shape[1:])


def of_group(whole: _Array, d: Dims) -> _Array:
    return whole.reshape(-1, *whole.shape[2:])[_group(d)]


def take(a: Arrays, d: Dims, names: str) -> list[_Array]:
    return [windows(a[name], d) for name in names.split()]
