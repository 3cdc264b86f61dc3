"""Dense and binary low-rank products, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvgpu.ref.elementwise import f64

Array = np.ndarray[Any, Any]
Path = tuple[Array, Array, Array, Array, Array]
"""h [m], l [r], g [n], words of U [m, ceil(r/32)], words of V [r, ceil(n/32)]."""


def matmul_nt(x: Array, w: Array) -> Array:
    """y [N, M] = x [N, K] · w [M, K]ᵀ."""
    x, w = f64(x, w)
    return x @ w.T


def matmul_nn(dy: Array, w: Array) -> Array:
    """dx [N, K] = dy [N, M] · w [M, K]."""
    dy, w = f64(dy, w)
    return dy @ w


def matmul_tn(x: Array, w: Array) -> Array:
    """y [N, K] = x [M, N]ᵀ · w [M, K]."""
    x, w = f64(x, w)
    return x.T @ w


def unpack_signs(words: Array, cols: int) -> Array:
    """±1 [M, cols] from u32 words [M, ceil(cols/32)]: least significant bit first, 1 is +1."""
    bits = np.unpackbits(np.ascontiguousarray(words, "<u4").view(np.uint8), axis=1, bitorder="little")
    return 2.0 * bits[:, :cols] - 1.0


def pack_signs(signs: Array) -> Array:
    """The inverse of unpack_signs; the bits behind the last column are 0."""
    rows, cols = signs.shape
    bits = np.zeros((rows, -(-cols // 32) * 32), np.uint8)
    bits[:, :cols] = signs > 0
    return np.packbits(bits, axis=1, bitorder="little").view("<u4")


def sign_matmul_nt(x: Array, cin: Array, words: Array, cout: Array) -> Array:
    """y [N, M]: y_nm = cout_m Σ_k x_nk cin_k s_mk, signs [M, K] in words."""
    x, cin, cout = f64(x, cin, cout)
    return ((x * cin) @ unpack_signs(words, x.shape[1]).T) * cout


def sign_matmul_nn(a: Array, cin: Array, words: Array, cout: Array) -> Array:
    """y [N, K]: y_nk = cout_k Σ_m a_nm cin_m s_mk."""
    a, cin, cout = f64(a, cin, cout)
    return ((a * cin) @ unpack_signs(words, len(cout))) * cout


def blr_fwd(x: Array, paths: Sequence[Path]) -> Array:
    """y [N, m] = x · Wᵀ, W = Σ diag(h) U diag(l) V diag(g)."""
    (x,) = f64(x)
    ones = np.ones
    y: Array = np.zeros((len(x), len(paths[0][0])))
    for h, l, g, u, v in paths:
        t = sign_matmul_nt(x, g, v, ones(len(l)))
        y = y + sign_matmul_nt(t, l, u, h)
    return y


def blr_bwd(x: Array, paths: Sequence[Path], dy: Array) -> tuple[Array, list[tuple[Array, Array, Array]]]:
    """(dx [N, n], [(dh, dl, dg) of every path])."""
    x, dy = f64(x, dy)
    dx: Array = np.zeros_like(x)
    grads = []
    for path in paths:
        h, l, g = f64(*path[:3])
        U, V = unpack_signs(path[3], len(l)), unpack_signs(path[4], len(g))
        t = (x * g) @ V.T
        ds = (dy * h) @ U
        e = (ds * l) @ V
        dx = dx + e * g
        grads.append((np.sum(dy * ((t * l) @ U.T), axis=0), np.sum(ds * t, axis=0), np.sum(x * e, axis=0)))
    return dx, grads
