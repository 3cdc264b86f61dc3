"""RMSNorm in both styles, and the gated norm behind GatedDeltaNet, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvgpu.ref.elementwise import dsilu, f64, silu

Array = np.ndarray[Any, Any]


def _rstd(x: Array, eps: float) -> Array:
    rstd: Array = 1.0 / np.sqrt(np.mean(x * x, axis=-1) + eps)
    return rstd


def through_norm(x: Array, rstd: Array, dxhat: Array) -> Array:
    """Gradient at x of x̂ = x·rstd, given the gradient at x̂; the norm runs over the last axis."""
    xhat = x * rstd[..., None]
    dx: Array = rstd[..., None] * (dxhat - xhat * np.mean(dxhat * xhat, axis=-1, keepdims=True))
    return dx


def rms_norm_fwd(x: Array, w: Array, *, eps: float, gemma: bool) -> tuple[Array, Array]:
    """(y [N, C], rstd [N])."""
    x, w = f64(x, w)
    rstd = _rstd(x, eps)
    return x * rstd[..., None] * (w + 1.0 if gemma else w), rstd


def rms_norm_bwd(x: Array, w: Array, rstd: Array, dy: Array, *, gemma: bool) -> Array:
    """dx [N, C]."""
    x, w, rstd, dy = f64(x, w, rstd, dy)
    return through_norm(x, rstd, dy * (w + 1.0 if gemma else w))


def rms_norm_dw(x: Array, rstd: Array, dy: Array) -> Array:
    """dw [C]."""
    x, rstd, dy = f64(x, rstd, dy)
    dw: Array = np.sum(dy * x * rstd[..., None], axis=0)
    return dw


def gated_rms_norm_fwd(x: Array, w: Array, z: Array, *, eps: float) -> tuple[Array, Array]:
    """x, z [N, H, D], w [D]: (y = x̂·w·silu(z), rstd [N, H])."""
    x, w, z = f64(x, w, z)
    rstd = _rstd(x, eps)
    return x * rstd[..., None] * w * silu(z), rstd


def gated_rms_norm_bwd(x: Array, w: Array, z: Array, rstd: Array, dy: Array) -> tuple[Array, Array]:
    """(dx, dz)."""
    x, w, z, rstd, dy = f64(x, w, z, rstd, dy)
    xhat = x * rstd[..., None]
    return through_norm(x, rstd, dy * w * silu(z)), dy * xhat * w * dsilu(z)


def gated_rms_norm_dw(x: Array, z: Array, rstd: Array, dy: Array) -> Array:
    """dw [D]."""
    x, z, rstd, dy = f64(x, z, rstd, dy)
    dw: Array = np.sum(dy * x * rstd[..., None] * silu(z), axis=(0, 1))
    return dw
