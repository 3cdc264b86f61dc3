"""Rotation and alternating-direction starts, and descent on signs: lower error, exact bookkeeping, odd Grams."""

import numpy as np
import pytest

from nvgpu.encode import descent
from nvgpu.encode.encoders import STARTS, encode, solve
from nvgpu.encode.factors import Path, Problem, dense, signs
from nvgpu.encode.grams import damped
from nvgpu.encode.itq import fit_rotation
from nvgpu.encode.lowrank import lowrank


def problem(m=40, n=48, rank=16, paths=1, gram=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * n, n)) * np.exp(rng.standard_normal(n))
    w = rng.standard_normal((m, n)) @ np.diag(np.arange(1, n + 1) ** -0.3)
    return Problem(w, rank, paths, damped(x.T @ x / len(x)) if gram else None)


def random_paths(p, seed=1):
    rng = np.random.default_rng(seed)
    draw, (m, n) = rng.standard_normal, p.w.shape
    return [
        Path(draw(m), signs(draw((m, p.rank))), draw(p.rank), signs(draw((p.rank, n))), draw(n))
        for _ in range(p.paths)
    ]


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("paths", [1, 2])
def test_every_encoder_beats_dual_svid(gram, paths):
    p = problem(gram=gram, paths=paths)
    errors = {method: p.relative_error(encode("w", p, method)) for method in STARTS}
    assert max(errors[method] for method in ("svid-refit", "itq", "admm")) < 0.9 * errors["svid"]
    assert errors["admm"] < errors["svid-refit"]


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("paths", [1, 2])
def test_flips_lower_the_error_and_end_where_no_flip_does(gram, paths, monkeypatch):
    """After enough sweeps, flipping any one sign of V of the last path raises the error."""
    monkeypatch.setattr(descent, "_SWEEPS", 50)
    p = problem(m=16, n=24, rank=8, gram=gram, paths=paths)
    start = random_paths(p)
    found = descent.flip(p, start)
    error = p.squared_error(found)
    assert error < p.squared_error(start)
    last = found[-1]
    for k in range(p.rank):
        for j in range(24):
            last.v[k, j] *= -1
            assert p.squared_error(found) > error * (1 - 1e-12)
            last.v[k, j] *= -1


def test_blocks_of_columns_give_the_descent_of_single_ones(monkeypatch):
    p = problem(m=24, n=40, rank=8)
    start = random_paths(p)
    whole = descent.flip(p, start)
    monkeypatch.setattr(descent, "_BLOCK", 1)
    assert np.array_equal(descent.flip(p, start)[0].v, whole[0].v)


@pytest.mark.parametrize("paths", [1, 2])
def test_refinement_never_raises_the_error(paths):
    p = problem(paths=paths)
    for seed in range(3):
        start = random_paths(p, seed)
        assert p.squared_error(descent.refine(p, start)) <= p.squared_error(start)


@pytest.mark.parametrize("gram", [False, True])
def test_the_factors_before_signs_are_the_best_of_their_rank(gram):
    p = problem(gram=gram)
    left, right = lowrank(p)
    root = np.linalg.cholesky(p.gram) if gram else np.eye(48)
    values = np.linalg.svd(p.w @ root, compute_uv=False)
    assert p.error2(left @ right) == pytest.approx(np.sum(values[16:] ** 2), rel=1e-9)
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), np.linalg.norm(right, axis=1))


def test_rotations_are_orthogonal_and_bring_rows_near_signs():
    a = np.random.default_rng(0).standard_normal((60, 12)) @ np.diag(np.linspace(0.1, 2, 12))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    r = fit_rotation(a, 3)
    np.testing.assert_allclose(r.T @ r, np.eye(12), atol=1e-12)
    assert np.abs(a @ r).sum() > 1.05 * np.abs(a).sum()


def test_ranks_beyond_the_smaller_side_are_used_by_admm():
    p = problem(m=16, n=48, rank=32)
    few = Problem(p.w, 16, 1, p.gram)
    assert p.relative_error(encode("w", p, "admm")) < 0.9 * few.relative_error(encode("w", few, "admm"))


def test_equal_seeds_give_equal_signs():
    a, b = (solve(problem(), "admm")[0] for _ in range(2))
    assert np.array_equal(a.u, b.u) and np.array_equal(a.v, b.v)


@pytest.mark.parametrize(
    "kind", ["few tokens", "constant channel", "one at 1e4", "identical windows", "dead"]
)
@pytest.mark.parametrize("method", ["svid-refit", "itq", "admm"])
def test_odd_grams(kind, method):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256, 48))
    if kind == "few tokens":
        x = x[:5]
    elif kind == "constant channel":
        x[:, 3] = 1.0
    elif kind == "one at 1e4":
        x[:, 3] *= 1e4
    elif kind == "identical windows":
        x = np.tile(x[:8], (32, 1))
    else:
        x[:, :40] = 0.0
    gram = x.T @ x / len(x)
    w = rng.standard_normal((32, 48))
    p = Problem(w, 16, 1, damped(gram))
    found = encode("w", p, method)
    plain = encode("w", p, "svid")
    judge = Problem(w, 16, 1, gram)
    assert np.isfinite(dense(found)).all()
    assert judge.relative_error(found) <= judge.relative_error(plain)
    if kind == "one at 1e4":  # the others still count
        rest = np.delete(np.arange(48), 3)
        others = Problem(w[:, rest], 16, 1, gram[np.ix_(rest, rest)])
        assert np.sqrt(others.error2(dense(found)[:, rest]) / others.norm2) < 0.9
