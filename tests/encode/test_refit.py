"""Refits against dense least squares in float64, and the promise that they never raise the error."""

import numpy as np
import pytest

from nvgpu.encode.factors import Path, Problem, dense, signs
from nvgpu.encode.refit import refit, refit_g, refit_h, refit_l


def make(m=14, n=24, rank=8, paths=1, gram=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3 * n, n)) * np.exp(rng.standard_normal(n))
    problem = Problem(rng.standard_normal((m, n)), rank, paths, x.T @ x / len(x) if gram else None)
    draw = rng.standard_normal
    return problem, [
        Path(h=draw(m), u=signs(draw((m, rank))), l=draw(rank), v=signs(draw((rank, n))), g=draw(n))
        for _ in range(paths)
    ]


def best_error2(problem, columns):
    """Least ||(W - sum_k t_k columns_k) G^(1/2)||^2 over t, by a dense solve on the flattened matrices."""
    gram = np.eye(problem.w.shape[1]) if problem.gram is None else problem.gram
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(values) @ vectors.T
    a = np.stack([(c @ root).ravel() for c in columns], 1)
    b = (problem.w @ root).ravel()
    return float(np.sum((b - a @ np.linalg.lstsq(a, b, rcond=None)[0]) ** 2))


def unit(size, i):
    return np.eye(size)[i]


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize("paths", [1, 2])
class TestAgainstADenseSolve:
    def test_h(self, paths, gram):
        problem, start = make(paths=paths, gram=gram)
        after = refit_h(problem, start, [p.core() for p in start])
        m = problem.w.shape[0]
        columns = [np.outer(unit(m, i), np.ones(24)) * p.core() * p.g for p in start for i in range(m)]
        assert problem.error2(dense(after)) == pytest.approx(best_error2(problem, columns), rel=1e-9)

    def test_g(self, paths, gram):
        problem, start = make(paths=paths, gram=gram)
        after = refit_g(problem, start, [p.core() for p in start])
        columns = [p.h[:, None] * p.core() * unit(24, j) for p in start for j in range(24)]
        assert problem.error2(dense(after)) == pytest.approx(best_error2(problem, columns), rel=1e-9)

    def test_l(self, paths, gram):
        problem, start = make(paths=paths, gram=gram)
        after = refit_l(problem, start)
        columns = [np.outer(p.h * p.u[:, k], p.v[k] * p.g) for p in start for k in range(8)]
        assert problem.error2(dense(after)) == pytest.approx(best_error2(problem, columns), rel=1e-9)

    def test_no_refit_raises_the_error_and_signs_stay(self, paths, gram):
        problem, state = make(paths=paths, gram=gram, seed=1)
        start, error = state, problem.error2(dense(state))
        for _ in range(4):
            for step in (lambda s: refit_l(problem, s), lambda s: refit_h(problem, s, [p.core() for p in s]),
                         lambda s: refit_g(problem, s, [p.core() for p in s])):  # fmt: skip
                state = step(state)
                now = problem.error2(dense(state))
                assert now <= error * (1 + 1e-12)
                error = now
        swept = refit(problem, start)
        assert problem.error2(dense(swept)) < problem.error2(dense(start))
        for a, b in zip(start, swept, strict=True):
            assert np.array_equal(a.u, b.u) and np.array_equal(a.v, b.v)


@pytest.mark.parametrize("gram", [False, True])
def test_refit_finds_scales_that_fit_exactly(gram):
    problem, planted = make(m=40, n=48, gram=gram)
    exact = Problem(dense(planted), 8, 1, problem.gram)
    rng = np.random.default_rng(5)
    p = planted[0]
    start = [Path(p.h * rng.uniform(0.8, 1.2, 40), p.u, p.l * rng.uniform(0.8, 1.2, 8), p.v, p.g)]
    assert exact.relative_error(refit(exact, start)) < 0.02 * exact.relative_error(start)


@pytest.mark.parametrize("gram", [False, True])
def test_equal_sign_columns_are_no_obstacle(gram):
    problem, start = make(gram=gram)
    start[0].u[:, 1], start[0].v[1] = start[0].u[:, 0], start[0].v[0]
    after = refit(problem, start)
    assert problem.error2(dense(after)) < problem.error2(dense(start))
    assert all(np.isfinite(s).all() for s in (after[0].h, after[0].l, after[0].g))


def test_a_gram_of_lower_rank_than_its_size():
    problem, start = make()
    x = np.random.default_rng(2).standard_normal((5, 24))
    x[:, 3] = 0
    x[:, 4] *= 1e4
    few = Problem(problem.w, 8, 1, x.T @ x)
    after = refit(few, start)
    assert few.error2(dense(after)) < few.error2(dense(start))
    assert np.isfinite(dense(after)).all()


def test_relative_error_is_weighted():
    problem, start = make()
    diff = problem.w - dense(start)
    error, norm = (np.trace(a @ problem.gram @ a.T) for a in (diff, problem.w))
    assert problem.relative_error(start) == pytest.approx(np.sqrt(error / norm))
