"""Every backward of the reference against central differences, with a random upstream gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nvgpu.ref import attention, elementwise, gdn, head, linear, norm
from tests.ref.differences import central, relative, rng_of

Array = np.ndarray[Any, Any]
Inputs = dict[str, Array]
LIMIT = 1e-6  # the contract is 1e-4; what is left here is the differences' own error


def check(inputs: Inputs, forward: Callable[[Inputs], Array], dy: Array, grads: Inputs) -> None:
    """`grads` of sum(dy·forward) at the inputs of the same names."""
    for name, grad in grads.items():
        assert grad.shape == inputs[name].shape, name
        numeric = central(lambda: float(np.sum(dy * forward(inputs))), inputs[name])
        assert relative(grad, numeric) < LIMIT, name


def upstream(rng: np.random.Generator, y: Array) -> Array:
    """A random gradient at y."""
    return rng.standard_normal(tuple(y.shape))


# ── elementwise ──


def test_swiglu() -> None:
    rng = rng_of("swiglu")
    i = {"gate": 3.0 * rng.standard_normal((3, 7)), "up": rng.standard_normal((3, 7))}

    def forward(i: Inputs) -> Array:
        return elementwise.swiglu_fwd(i["gate"], i["up"])

    dy = upstream(rng, forward(i))
    check(i, forward, dy, dict(zip(("gate", "up"), elementwise.swiglu_bwd(*i.values(), dy), strict=True)))


def test_sigmoid_gate() -> None:
    rng = rng_of("sigmoid_gate")
    i = {"x": rng.standard_normal((3, 7)), "gate": 3.0 * rng.standard_normal((3, 7))}

    def forward(i: Inputs) -> Array:
        return elementwise.sigmoid_gate_fwd(i["x"], i["gate"])

    dy = upstream(rng, forward(i))
    check(
        i, forward, dy, dict(zip(("x", "gate"), elementwise.sigmoid_gate_bwd(*i.values(), dy), strict=True))
    )


def test_col_scale() -> None:
    rng = rng_of("col_scale")
    i = {"x": rng.standard_normal((5, 3)), "g": rng.standard_normal(3)}
    dy = rng.standard_normal((5, 3))
    grads = {"x": elementwise.col_scale(dy, i["g"]), "g": elementwise.colsum_mul(dy, i["x"])}
    check(i, lambda i: elementwise.col_scale(i["x"], i["g"]), dy, grads)


# ── norms ──


@pytest.mark.parametrize("gemma", [False, True])
def test_rms_norm(gemma: bool) -> None:
    rng = rng_of(f"rms_norm-{gemma}")
    i = {"x": rng.standard_normal((5, 13)), "w": rng.standard_normal(13)}

    def forward(i: Inputs) -> Array:
        return norm.rms_norm_fwd(i["x"], i["w"], eps=0.1, gemma=gemma)[0]

    _, rstd = norm.rms_norm_fwd(i["x"], i["w"], eps=0.1, gemma=gemma)
    dy = upstream(rng, i["x"])
    dx = norm.rms_norm_bwd(i["x"], i["w"], rstd, dy, gemma=gemma)
    check(i, forward, dy, {"x": dx, "w": norm.rms_norm_dw(i["x"], rstd, dy)})


def test_gated_rms_norm() -> None:
    rng = rng_of("gated_rms_norm")
    i = {name: rng.standard_normal((3, 2, 7)) for name in "xz"} | {"w": rng.standard_normal(7)}

    def forward(i: Inputs) -> Array:
        return norm.gated_rms_norm_fwd(i["x"], i["w"], i["z"], eps=0.1)[0]

    _, rstd = norm.gated_rms_norm_fwd(i["x"], i["w"], i["z"], eps=0.1)
    dy = upstream(rng, i["x"])
    dx, dz = norm.gated_rms_norm_bwd(i["x"], i["w"], i["z"], rstd, dy)
    check(i, forward, dy, {"x": dx, "z": dz, "w": norm.gated_rms_norm_dw(i["x"], i["z"], rstd, dy)})


# ── attention ──


def test_split_q_gate() -> None:
    rng = rng_of("split_q_gate")
    qg = rng.standard_normal((3, 3 * 2 * 5))
    q, gate = attention.split_q_gate(qg, heads=3)
    assert q.shape == gate.shape == (3, 15)
    assert np.array_equal(q[:, 5:10], qg[:, 10:15]) and np.array_equal(gate[:, 5:10], qg[:, 15:20])
    assert np.array_equal(attention.merge_q_gate(q, gate, heads=3), qg)


@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("half", [2, 5], ids=["partial", "full"])
def test_qk_norm_rope(gemma: bool, half: int) -> None:
    rng = rng_of(f"qk_norm_rope-{gemma}-{half}")
    table = attention.rope_table(3, 0.7 ** np.arange(half))
    i = {"x": rng.standard_normal((6, 3, 10)), "w": rng.standard_normal(10)}

    def run(i: Inputs) -> tuple[Array, Array]:
        return attention.qk_norm_rope_fwd(i["x"], i["w"], table, eps=0.1, gemma=gemma)

    y, rstd = run(i)
    dy = upstream(rng, y)
    dx = attention.qk_norm_rope_bwd(i["x"], i["w"], rstd, table, dy, gemma=gemma)
    check(i, lambda i: run(i)[0], dy, {"x": dx, "w": attention.qk_norm_rope_dw(i["x"], rstd, table, dy)})


@pytest.mark.parametrize(("T", "H", "KV"), [(1, 2, 1), (5, 6, 2), (7, 3, 3)])
def test_attention(T: int, H: int, KV: int) -> None:
    rng = rng_of(f"attention-{T}-{H}-{KV}")
    i = {"q": rng.standard_normal((2, T, H, 5))} | {n: rng.standard_normal((2, T, KV, 5)) for n in "kv"}
    o, lse = attention.attention_fwd(*i.values())
    do = upstream(rng, o)
    grads = attention.attention_bwd(*i.values(), o, lse, do)
    # one token: the softmax is constant, so differences at q and k are rounding noise
    assert T > 1 or max(np.abs(grads[0]).max(), np.abs(grads[1]).max()) < 1e-12
    moving = "v" if T == 1 else "qkv"
    named = dict(zip("qkv", grads, strict=True))
    check(i, lambda i: attention.attention_fwd(*i.values())[0], do, {n: named[n] for n in moving})


# ── linears ──


def test_matmul() -> None:
    rng = rng_of("matmul")
    i = {"x": rng.standard_normal((3, 5)), "w": rng.standard_normal((7, 5))}
    dy = rng.standard_normal((3, 7))
    check(i, lambda i: linear.matmul_nt(i["x"], i["w"]), dy, {"x": linear.matmul_nn(dy, i["w"])})


@pytest.mark.parametrize(("M", "K"), [(3, 5), (7, 33), (33, 64)])
def test_sign_matmul(M: int, K: int) -> None:
    rng = rng_of(f"sign_matmul-{M}-{K}")
    signs = rng.choice([-1.0, 1.0], (M, K))
    words = linear.pack_signs(signs)
    i = {"x": rng.standard_normal((3, K)), "cin": rng.standard_normal(K), "cout": rng.standard_normal(M)}

    def forward(i: Inputs) -> Array:
        return linear.sign_matmul_nt(i["x"], i["cin"], words, i["cout"])

    assert np.allclose(forward(i), i["x"] @ (i["cout"][:, None] * signs * i["cin"]).T)
    dy = rng.standard_normal((3, M))
    check(i, forward, dy, {"x": linear.sign_matmul_nn(dy, i["cout"], words, i["cin"])})


@pytest.mark.parametrize("paths", [1, 2])
def test_blr(paths: int) -> None:
    rng = rng_of(f"blr-{paths}")
    m, n, r = 7, 37, 5
    signs = [[linear.pack_signs(rng.choice([-1.0, 1.0], s)) for s in ((m, r), (r, n))] for _ in range(paths)]
    i = {"x": rng.standard_normal((3, n))}
    for p in range(paths):
        i |= {f"{part}{p}": rng.standard_normal(size) for part, size in zip("hlg", (m, r, n), strict=True)}

    def all_paths(i: Inputs) -> list[linear.Path]:
        return [(*(i[f"{part}{p}"] for part in "hlg"), *signs[p]) for p in range(paths)]

    dy = rng.standard_normal((3, m))
    dx, scales = linear.blr_bwd(i["x"], all_paths(i), dy)
    grads = {"x": dx}
    for p, path in enumerate(scales):
        grads |= {f"{part}{p}": grad for part, grad in zip("hlg", path, strict=True)}
    check(i, lambda i: linear.blr_fwd(i["x"], all_paths(i)), dy, grads)


# ── GatedDeltaNet ──


@pytest.mark.parametrize("T", [1, 3, 9])
def test_conv_silu(T: int) -> None:
    rng = rng_of(f"conv_silu-{T}")
    i = {"x": rng.standard_normal((2, T, 3)), "w": rng.standard_normal((3, 4))}
    dy = rng.standard_normal((2, T, 3))
    grads = dict(zip("xw", gdn.conv_silu_bwd(i["x"], i["w"], dy), strict=True))
    check(i, lambda i: gdn.conv_silu_fwd(i["x"], i["w"]), dy, grads)


def test_gdn_gates() -> None:
    rng = rng_of("gdn_gates")
    i = {"a": 3.0 * rng.standard_normal((5, 3)), "b": 3.0 * rng.standard_normal((5, 3))}
    i |= {"a_log": rng.standard_normal(3), "dt_bias": rng.standard_normal(3)}
    dy = rng.standard_normal((2, 5, 3))
    grads = dict(zip(i, gdn.gdn_gates_bwd(*i.values(), *dy), strict=True))
    check(i, lambda i: np.stack(gdn.gdn_gates_fwd(*i.values())), dy, grads)


def test_gdn_l2norm() -> None:
    rng = rng_of("gdn_l2norm")
    dims = {"Hk": 2, "Dk": 5, "Hv": 6, "Dv": 3}
    i = {"qkv": rng.standard_normal((3, 2 * 10 + 18))}

    def flat(parts: tuple[Array, ...]) -> Array:
        return np.concatenate([p.reshape(3, -1) for p in parts], axis=1)

    def forward(i: Inputs) -> Array:
        return flat(gdn.gdn_l2norm_fwd(i["qkv"], **dims, eps=0.1))

    dy = rng.standard_normal((3, 38))
    parts = (dy[:, :10].reshape(3, 2, 5), dy[:, 10:20].reshape(3, 2, 5), dy[:, 20:].reshape(3, 6, 3))
    check(i, forward, dy, {"qkv": gdn.gdn_l2norm_bwd(i["qkv"], *parts, **dims, eps=0.1)})


GATES = {
    "forget": (0.02, 0.5),  # decay near 0
    "keep": (0.998, 0.5),  # decay near 1
    "idle": (0.9, 0.005),  # beta near 0
    "replace": (0.9, 0.995),  # beta near 1
    "mixed": (0.5, 0.5),
}


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("T", [1, 5, 67])
def test_gdn_recurrence(T: int, gates: str) -> None:
    rng = rng_of(f"gdn_recurrence-{T}-{gates}")
    Hk, Hv, Dk, Dv = 1, 3, 3, 2
    decay, beta = (
        np.clip(mean + 0.3 * mean * (1 - mean) * rng.standard_normal((2, T, Hv)), 1e-3, 1.0 - 1e-3)
        for mean in GATES[gates]
    )
    i = {n: rng.standard_normal((2, T, Hk, Dk)) for n in "qk"}
    i["k"] /= np.linalg.norm(i["k"], axis=-1, keepdims=True)
    i |= {"v": rng.standard_normal((2, T, Hv, Dv)), "log_decay": np.log(decay), "beta": beta}
    do = rng.standard_normal((2, T, Hv, Dv))
    grads = dict(zip(i, gdn.gdn_recurrence_bwd(*i.values(), do), strict=True))
    if T == 1:  # the state before the only token is zero
        assert not grads.pop("log_decay").any()
    check(i, lambda i: gdn.gdn_recurrence_fwd(*i.values()), do, grads)


# ── losses ──


def test_kl_topk() -> None:
    rng = rng_of("kl_topk")
    i = {"logits": 3.0 * rng.standard_normal((5, 11))}
    ids = np.stack([rng.choice(11, 4, replace=False) for _ in range(5)])
    p = rng.random((5, 4))
    p[:, 2] = 0.0
    p /= p.sum(axis=1, keepdims=True)
    weight = np.array([0.0, 0.5, 1.0, 2.0, 0.25])
    kl, dlogits = head.kl_topk(i["logits"], ids, p, weight)
    check(i, lambda i: head.kl_topk(i["logits"], ids, p, weight)[0], weight, {"logits": dlogits})
    whole = np.zeros((5, 11))
    np.put_along_axis(whole, ids, np.where(p > 0, p, 0.0), axis=1)
    log_q = i["logits"] - head.lse(i["logits"])[:, None]
    expected = np.sum(whole * (np.log(np.where(whole > 0, whole, 1.0)) - log_q), axis=1)
    assert np.allclose(kl, expected, rtol=1e-12)
    one_hot = head.kl_topk(i["logits"], ids[:, :1], np.ones((5, 1)), weight)[0]
    assert np.allclose(one_hot, head.nll(i["logits"], ids[:, 0]), rtol=1e-12)


def test_logits() -> None:
    rng = rng_of("logits")
    i = {"x": rng.standard_normal((3, 5)), "w": rng.standard_normal((11, 5))}
    dy = rng.standard_normal((3, 11))
    check(i, lambda i: head.logits(i["x"], i["w"]), dy, {"x": dy @ i["w"], "w": dy.T @ i["x"]})
