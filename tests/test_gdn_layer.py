"""The gated delta recurrence and the GatedDeltaNet layer on the device against their float64 definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.errors import InputError
from nvgpu.gpu import Device, Recorder
from nvgpu.layers.gdn import Gdn
from nvgpu.layers.linear import DenseLinear
from nvgpu.layers.recurrence import Recurrence
from nvgpu.layers.workspace import Workspace
from nvgpu.ref import gdn as ref
from nvgpu.ref.blocks import Dims, GdnDims, Scope, gdn_bwd, gdn_fwd

Array = np.ndarray[Any, Any]
RECURRENCE_REL_L2 = 2e-6
DECAY_REL_L2 = 3e-5  # of dbeta: dlog_decay sums over all pairs of tokens around it, and cancels to nothing for repeated keys
LAYER_REL_L2 = 5e-6


def off(got: Array, want: Array, scale: Array | None = None) -> float:
    """L2 distance relative to `want`, or to the larger of `want` and `scale`."""
    return float(
        np.linalg.norm(got - want)
        / max(np.linalg.norm(want), np.linalg.norm(want if scale is None else scale))
    )


# ── recurrence ──


def draw(B: int, T: int, Hk: int, Hv: int, D: int, gates: str) -> dict[str, Array]:
    """Inputs as the net makes them, and gates or keys of the named kind."""
    rng = np.random.default_rng(T + D)
    q, k = rng.standard_normal((2, B, T, Hk, D))
    if gates == "repeated keys":
        k[:] = k[:, :1]
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    log_decay, beta = -rng.exponential(0.1, (B, T, Hv)), rng.random((B, T, Hv))
    if gates in ("keeps all", "repeated keys"):
        log_decay[:], beta[:] = 0.0, 1.0
    elif gates == "forgets all":
        log_decay[:] = -rng.uniform(20.0, 2000.0, log_decay.shape)
    elif gates == "long memory":
        log_decay *= 1e-5
    elif gates == "mixed":
        log_decay[rng.random(log_decay.shape) < 0.2] = -1000.0
        log_decay[rng.random(log_decay.shape) < 0.2] = 0.0
        beta[rng.random(beta.shape) < 0.2] = 1.0
        beta[rng.random(beta.shape) < 0.2] = 0.0
    v, do = rng.standard_normal((2, B, T, Hv, D))
    drawn = {"q": q / D**0.5, "k": k, "v": v, "log_decay": log_decay, "beta": beta, "do": do}
    return {name: x.astype(np.float32) for name, x in drawn.items()}


def run_recurrence(device: Device, given: dict[str, Array], states_bytes: int) -> dict[str, Array]:
    """o and the gradients, dq and dk summed over the value heads of a key head; shapes [B, T, ...]."""
    B, T, Hk, D = given["q"].shape
    Hv = given["v"].shape[2]
    ws = Workspace(device)
    ins = {name: device.upload(name, x.reshape(B * T, *x.shape[2:])) for name, x in given.items()}
    do = ins.pop("do")
    wide, heads = (B * T, Hv, D), (B * T, Hv)
    shapes = {"o": wide, "dq": wide, "dk": wide, "dv": wide, "dlog_decay": heads, "dbeta": heads}
    outs = {name: device.upload(name, np.full(shape, np.nan)) for name, shape in shapes.items()}
    recurrence = Recurrence(T, states_bytes)
    with Recorder(device) as rec:
        saved = recurrence.forward(rec, ws, **ins, o=outs["o"])
        recurrence.backward(rec, ws, saved, do, **{name: b for name, b in outs.items() if name != "o"})
    got = {name: b.read().reshape(B, T, *b.shape[1:]) for name, b in outs.items()}
    for name in ("dq", "dk"):
        got[name] = got[name].reshape(B, T, Hk, Hv // Hk, D).sum(axis=3)
    ws.free()
    device.free(*ins.values(), do, *outs.values())
    return got


def wanted(given: dict[str, Array]) -> dict[str, Array]:
    ins = [given[name] for name in ("q", "k", "v", "log_decay", "beta")]
    names = ("dq", "dk", "dv", "dlog_decay", "dbeta")
    grads = dict(zip(names, ref.gdn_recurrence_bwd(*ins, given["do"]), strict=True))
    return {"o": ref.gdn_recurrence_fwd(*ins), **grads}


def check(got: dict[str, Array], given: dict[str, Array]) -> None:
    want = wanted(given)
    assert off(got["dlog_decay"], want["dlog_decay"], want["dbeta"]) < DECAY_REL_L2
    for name in want.keys() - {"dlog_decay"}:
        assert off(got[name], want[name]) < RECURRENCE_REL_L2, name


KINDS = ("plain", "keeps all", "forgets all", "long memory", "mixed", "repeated keys")


@pytest.mark.parametrize("gates", KINDS)
@pytest.mark.parametrize("T", [1, 63, 64, 65, 127])
def test_recurrence(device: Device, T: int, gates: str) -> None:
    given = draw(1, T, 1, 2, 32, gates)
    check(run_recurrence(device, given, 1 << 20), given)


@pytest.mark.parametrize("gates", ["long memory", "mixed", "repeated keys"])
def test_recurrence_over_many_chunks(device: Device, gates: str) -> None:
    given = draw(1, 1000, 1, 1, 64, gates)
    check(run_recurrence(device, given, 1 << 20), given)


def test_groups_of_scans_give_the_same_bits(device: Device) -> None:
    given = draw(3, 65, 1, 3, 32, "mixed")
    whole = run_recurrence(device, given, 1 << 20)
    for scans in (1, 2, 4):
        parts = run_recurrence(device, given, scans * 3 * 32 * 32 * 4)
        assert all(parts[name].tobytes() == want.tobytes() for name, want in whole.items())


# ── layer ──

LINEARS = ("in_qkv", "in_z", "in_a", "in_b", "out")


def weights(rng: np.random.Generator, C: int, d: GdnDims, taps: int) -> dict[str, Array]:
    keys, values = d.Hk * d.Dk, d.Hv * d.Dv
    rows = {"qkv": 2 * keys + values, "z": values, "a": d.Hv, "b": d.Hv}
    made = {f"in_proj_{n}.weight": rng.standard_normal((rows[n], C)) / C**0.5 for n in rows}
    made |= {
        "out_proj.weight": rng.standard_normal((C, values)) / values**0.5,
        "conv1d.weight": rng.standard_normal((rows["qkv"], 1, taps)) / 2.0,
        "A_log": np.log(rng.uniform(0.5, 16.0, d.Hv)),
        "dt_bias": rng.uniform(-5.0, 0.0, d.Hv),
        "norm.weight": rng.uniform(0.5, 1.5, d.Dv),
    }
    return {name: w.astype(np.float32) for name, w in made.items()}


@pytest.mark.parametrize(("D", "states_bytes"), [(128, 64 << 20), (64, 64 << 20), (64, 1)])
def test_layer(device: Device, D: int, states_bytes: int) -> None:
    B, T, C, taps, eps = 3, 65, 192, 4, 1e-6
    d = GdnDims(Hk=1, Hv=3, Dk=D, Dv=D)
    rng = np.random.default_rng(D)
    made = weights(rng, C, d, taps)
    x, dy = (rng.standard_normal((B * T, C)).astype(np.float32) for _ in range(2))
    scope = Scope({name: np.float64(w) for name, w in made.items()})
    dims = Dims(B, T, heads=1, kv_heads=1, eps=eps, gemma=True, table=np.zeros((T, 1, 2)), gdn=d)
    want_y, saved = gdn_fwd(scope, np.float64(x), dims)
    want_dx = gdn_bwd(scope, saved, np.float64(dy), dims)

    ws = Workspace(device)
    held = {name: device.upload(name, w) for name, w in made.items()}
    ends = {n: f"in_proj_{n[3:]}.weight" if n.startswith("in_") else f"{n}_proj.weight" for n in LINEARS}
    layer = Gdn(
        **{n: DenseLinear(end, f"gdn.{n}", held[end]) for n, end in ends.items()},
        a_log=held["A_log"],
        dt_bias=held["dt_bias"],
        norm=held["norm.weight"],
        conv=held["conv1d.weight"],
        key_heads=d.Hk,
        value_heads=d.Hv,
        key_dim=d.Dk,
        value_dim=d.Dv,
        taps=taps,
        eps=eps,
        window=T,
        states_bytes=states_bytes,
    )
    bx, bdy = device.upload("x", x), device.upload("dy", dy)
    by, bdx = (device.upload("result", np.full_like(x, np.nan)) for _ in range(2))
    with Recorder(device) as rec:
        kept = layer.forward(rec, ws, bx, by)
        layer.backward(rec, ws, kept, bx, bdy, bdx)
    assert off(by.read(), want_y) < LAYER_REL_L2
    assert off(bdx.read(), want_dx) < LAYER_REL_L2
    ws.free()
    device.free(*held.values(), bx, bdy, by, bdx)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_dim": 30}, "tensor w: head widths 30 .keys. and 64 .values., expected multiples of 4"),
        (
            {"value_heads": 3, "key_heads": 2},
            "tensor w: 3 value heads, expected a multiple of the 2 key heads",
        ),
    ],
)
def test_refuses_what_the_kernels_cannot_do(device: Device, change: dict[str, int], message: str) -> None:
    w = device.buffer("w", (4, 4))
    sizes = {
        "key_heads": 1,
        "value_heads": 1,
        "key_dim": 64,
        "value_dim": 64,
        "taps": 4,
        "window": 8,
        **change,
    }
    vectors = dict.fromkeys(("a_log", "dt_bias", "norm", "conv"), w)
    with pytest.raises(InputError, match=message):
        Gdn(**{n: DenseLinear("w", n, w) for n in LINEARS}, **vectors, eps=1e-6, **sizes)
    device.free(w)
