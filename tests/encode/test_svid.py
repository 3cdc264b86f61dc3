"""Dual-SVID against a naive implementation, and the matrices that break careless ones."""

import numpy as np
import pytest

from nvgpu.encode.encoders import STARTS, encode, solve
from nvgpu.encode.factors import Path, Problem, dense, normalise, signs
from nvgpu.encode.svid import rank_one
from nvgpu.errors import InputError


def matrix(m=48, n=64, power=0.6, seed=0):
    rng = np.random.default_rng(seed)
    k = min(m, n)
    u = np.linalg.qr(rng.standard_normal((m, k)))[0]
    v = np.linalg.qr(rng.standard_normal((n, k)))[0]
    return (u * np.arange(1, k + 1) ** -power) @ v.T


def naive_svid(w, rank):
    """The textbook form, entry by entry: full decomposition, loops, rank-1 fits by a second decomposition."""
    u, s, vt = np.linalg.svd(w)
    out = np.zeros_like(w)
    p = np.array([[u[i, k] * s[k] ** 0.5 for k in range(rank)] for i in range(w.shape[0])])
    q = np.array([[s[k] ** 0.5 * vt[k, j] for j in range(w.shape[1])] for k in range(rank)])
    pu, ps, pv = np.linalg.svd(np.abs(p))
    qu, qs, qv = np.linalg.svd(np.abs(q))
    h, l_u = np.abs(pu[:, 0]) * ps[0] ** 0.5, np.abs(pv[0]) * ps[0] ** 0.5
    l_v, g = np.abs(qu[:, 0]) * qs[0] ** 0.5, np.abs(qv[0]) * qs[0] ** 0.5
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            for k in range(rank):
                sign = (1 if p[i, k] >= 0 else -1) * (1 if q[k, j] >= 0 else -1)
                out[i, j] += h[i] * g[j] * l_u[k] * l_v[k] * sign
    return out


@pytest.mark.parametrize(("m", "n"), [(48, 64), (64, 40)])
def test_plain_svid_equals_a_naive_implementation(m, n):
    w = matrix(m, n)
    one = solve(Problem(w, 16, 1), "svid")
    np.testing.assert_allclose(dense(one), naive_svid(w, 16), atol=1e-10)
    two = solve(Problem(w, 16, 2), "svid")
    first = naive_svid(w, 16)
    np.testing.assert_allclose(dense(two), first + naive_svid(w - first, 16), atol=1e-10)


@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
def test_rank_one_fit_is_the_best_one(shape):
    a = np.abs(np.random.default_rng(0).standard_normal(shape))
    x, y = rank_one(a)
    s = np.linalg.svd(a, compute_uv=False)
    assert np.sum((a - np.outer(x, y)) ** 2) == pytest.approx(np.sum(s[1:] ** 2))
    assert np.linalg.norm(x) == pytest.approx(np.linalg.norm(y))
    assert (x >= 0).all() and (y >= 0).all()


@pytest.mark.parametrize("power", [0.3, 1.0])
@pytest.mark.parametrize("gram", [False, True])
def test_refits_and_a_second_path_reduce_the_error(power, gram):
    w = matrix(power=power)
    x = np.random.default_rng(3).standard_normal((256, w.shape[1])) * np.linspace(0.2, 3, w.shape[1])
    g = x.T @ x / len(x) if gram else None

    def error(method, paths):
        problem = Problem(w, 16, paths, g)
        return problem.relative_error(encode("w", problem, method))

    assert error("svid-refit", 1) < error("svid", 1) < 1
    assert error("svid-refit", 2) < error("svid", 2)
    assert error("svid-refit", 2) < error("svid-refit", 1)


def test_sign_of_zero_is_plus():
    assert signs(np.array([-1.0, -0.0, 0.0, 2.0])).tolist() == [-1, 1, 1, 1]


@pytest.mark.parametrize("method", list(STARTS))
@pytest.mark.parametrize("paths", [1, 2])
class TestHardMatrices:
    def encode(self, w, method, paths, rank=16):
        problem = Problem(w, rank, paths)
        found = encode("w", problem, method)
        for p in found:
            for scale in (p.h, p.l, p.g):
                assert np.isfinite(scale).all()
                assert np.array_equal(scale.astype(np.float16).astype(np.float64), scale)
            assert set(np.unique(p.u)) | set(np.unique(p.v)) <= {-1.0, 1.0}
        return problem.relative_error(found), found

    def test_zero_matrix(self, method, paths):
        error, found = self.encode(np.zeros((24, 32)), method, paths)
        assert error == 0 and all((p.l == 0).all() and (p.h == 1).all() for p in found)

    def test_zero_rows_and_columns(self, method, paths):
        w = matrix()
        w[5], w[:, 7] = 0, 0
        error, found = self.encode(w, method, paths)
        what = dense(found)
        assert error < 1 and np.abs(what[5]).max() < 1e-6 and np.abs(what[:, 7]).max() < 1e-6

    def test_rank_one_matrix_is_met(self, method, paths):
        rng = np.random.default_rng(1)
        error, _ = self.encode(np.outer(rng.standard_normal(24), rng.standard_normal(32)), method, paths)
        assert error < 2e-3

    def test_rank_beyond_the_smaller_side(self, method, paths):
        error, _ = self.encode(matrix(4, 64), method, paths, rank=8)
        assert error < 1

    @pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 6e4])
    def test_f16_holds_every_amplitude(self, method, paths, scale):
        w = matrix()
        w *= scale / np.abs(w).max()
        error, _ = self.encode(w, method, paths)
        problem = Problem(w, 16, paths)
        exact = problem.relative_error(solve(problem, method))
        assert error == pytest.approx(exact, rel=2e-4)

    def test_equal_input_gives_equal_scales_and_signs(self, method, paths):
        first, second = (self.encode(matrix(), method, paths)[1] for _ in range(2))
        for a, b in zip(first, second, strict=True):
            assert all(np.array_equal(getattr(a, f), getattr(b, f)) for f in "huvlg")


def test_normalise_keeps_the_term_and_balances_it():
    rng = np.random.default_rng(0)
    u = signs(rng.standard_normal((24, 8)))
    p = Path(h=rng.random(24) * 1e3, u=u, l=rng.random(8), v=np.ones((8, 32)), g=rng.random(32))
    q = normalise(p)
    np.testing.assert_allclose(q.dense(), p.dense(), rtol=1e-12)
    assert np.mean(q.h**2) == pytest.approx(np.mean(q.g**2))


def test_weights_that_cannot_be_stored_are_refused_by_name():
    w = matrix()
    with pytest.raises(InputError, match=r"layers\.0\.q: .*NaN"):
        encode("layers.0.q", Problem(np.where(w == w[0, 0], np.nan, w), 16), "svid")
    with pytest.raises(InputError, match=r"layers\.0\.q: .*overflow"):
        encode("layers.0.q", Problem(w * 1e20, 16), "svid")
    with pytest.raises(InputError, match="--method best: unknown"):
        encode("layers.0.q", Problem(w, 16), "best")
