"""The MLP and the row norm on the device against their float64 compositions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.gain import Gain
from nvgpu.layers.linear import DenseLinear
from nvgpu.layers.mlp import Mlp
from nvgpu.layers.norm import norm_backward, norm_forward
from nvgpu.layers.workspace import Workspace
from nvgpu.ref import norm as ref_norm
from nvgpu.ref.blocks import Scope, mlp_bwd, mlp_fwd

Array = np.ndarray[Any, Any]
REL_L2 = 2e-6


def off(got: Array, want: Array) -> float:
    """Relative L2 distance."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize(("N", "C", "F"), [(1, 4, 8), (65, 192, 416), (130, 64, 37)])
def test_mlp(device: Device, N: int, C: int, F: int) -> None:
    rng = np.random.default_rng(3)
    sizes = {"gate": (F, C), "up": (F, C), "down": (C, F)}
    weights = {n: (rng.standard_normal(s) / s[1] ** 0.5).astype(np.float32) for n, s in sizes.items()}
    x, dy = (rng.standard_normal((N, C)).astype(np.float32) for _ in range(2))
    scope = Scope({f"{n}_proj.weight": np.float64(w) for n, w in weights.items()})
    want_y, saved = mlp_fwd(scope, np.float64(x))
    want_dx = mlp_bwd(scope, saved, np.float64(dy))

    ws = Workspace(device)
    held = {n: device.upload(n, w) for n, w in weights.items()}
    bx, bdy = device.upload("x", x), device.upload("dy", dy)
    by, bdx = (device.upload("out", np.full_like(x, np.nan)) for _ in range(2))
    mlp = Mlp(**{n: DenseLinear(n, n, w) for n, w in held.items()})
    with Recorder(device) as rec:
        kept = mlp.forward(rec, ws, bx, by)
        mlp.backward(rec, ws, kept, bx, bdy, bdx)
    assert off(by.read(), want_y) < REL_L2
    assert off(bdx.read(), want_dx) < REL_L2
    ws.free()
    device.free(*held.values(), bx, bdy, by, bdx)


@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("N", [1, 63, 2100])
def test_norm(device: Device, N: int, gemma: bool) -> None:
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal((N, 192)).astype(np.float32) for _ in range(2))
    w = rng.standard_normal(192).astype(np.float32)
    want_y, rstd = ref_norm.rms_norm_fwd(x, w, eps=1e-6, gemma=gemma)
    want_dx = ref_norm.rms_norm_bwd(x, w, rstd, dy, gemma=gemma)
    want_dw = ref_norm.rms_norm_dw(x, rstd, dy)

    ws = Workspace(device)
    gain = Gain(device.upload("w", w), device.upload("g", np.zeros_like(w)))
    bx, bdy, bdx = (device.upload("x", a) for a in (x, dy, np.full_like(x, np.nan)))
    with Recorder(device) as rec:
        y: Buffer = norm_forward(rec, ws, "norm", gain, bx, 1e-6, gemma)
        norm_backward(rec, ws, "norm", gain, bx, bdy, bdx, gemma)
    assert gain.g is not None
    assert off(y.read(), want_y) < REL_L2
    assert off(bdx.read(), want_dx) < REL_L2
    assert off(gain.g.read(), want_dw) < REL_L2
    ws.free()
    device.free(gain.w, gain.g, bx, bdy, bdx)
