"""The reference of sign training: gradients by central differences, rounding without bias, steps that flip when they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvgpu.ref import signs
from nvgpu.ref.linear import pack_signs
from tests.ref.differences import central, relative, rng_of

Array = np.ndarray[Any, Any]
HYPER = signs.Hyper(eta=1e-2, step=1)


def test_gradients_are_those_of_real_numbers() -> None:
    rng = rng_of("sign_grads")
    m, n, r = 5, 7, 3
    x, dy = rng.standard_normal((4, n)), rng.standard_normal((4, m))
    U, V = rng.choice([-1.0, 1.0], (m, r)), rng.choice([-1.0, 1.0], (r, n))
    h, l, g = (rng.standard_normal(size) for size in (m, r, n))
    ((du, dv),) = signs.sign_grads(x, [(h, l, g, pack_signs(U), pack_signs(V))], dy)

    def loss() -> float:
        return float(np.sum(dy * (((x * g) @ V.T * l) @ U.T * h)))

    assert relative(du, central(loss, U)) < 1e-6
    assert relative(dv, central(loss, V)) < 1e-6


def test_the_slope_is_that_of_tanh() -> None:
    latents = np.array([[0.5, 0.01, -0.2, -1.0]])
    grad = np.array([[2.0, -3.0, 0.5, 1.0]])
    q = signs.slope(grad, latents, HYPER)
    numeric = central(lambda: float(np.sum(grad * np.tanh(HYPER.k * latents))), latents)
    assert relative(q, numeric) < 1e-6


def test_every_half_survives_rounding() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16)  # all that are finite and not negative
    values = halves.view(np.float16).astype(np.float32)
    noise = np.random.default_rng(0).integers(0, 1 << 13, values.shape, np.uint32)
    assert np.array_equal(signs.half_stochastic(values, noise), halves)
    assert np.array_equal(signs.half_nearest(-values), halves | 0x8000)


def test_nearest_rounding_is_numpys() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(100_000) * np.exp(6 * rng.standard_normal(100_000))).astype(np.float32)
    x = x[(np.abs(x) < 60000) & (np.abs(x) > 2.0**-13)]
    assert np.array_equal(signs.half_nearest(x).view(np.float16), x.astype(np.float16))


@pytest.mark.parametrize("x", [0.3, -0.7, 1e-5, 3e-8, -(2.0**-14)])
def test_stochastic_rounding_has_no_bias(x: float) -> None:
    count = 200_000
    value = np.full(count, x, np.float32)
    noise = signs.random_bits(11, 5, np.arange(count)) & np.uint32(0x1FFF)
    rounded = signs.half_stochastic(value, noise).view(np.float16).astype(np.float64)
    place = max(2.0**-24, 2.0 ** (np.floor(np.log2(abs(x))) - 10))
    assert np.abs(rounded - value[0]).max() <= place
    assert abs(rounded.mean() - float(value[0])) < 5 * place / np.sqrt(count)


def test_random_numbers_differ_by_matrix_step_and_place() -> None:
    index = np.arange(1 << 16)
    keys = [signs.matrix_key(seed, matrix) for seed in (1, 2) for matrix in range(50)]
    assert len(set(keys)) == 100
    draws = [signs.random_bits(key, step, index) for key in keys[:2] for step in (0, 1, 2)]
    for i, a in enumerate(draws):
        assert len(np.unique(a)) > 0.99999 * len(a) - 1
        assert abs((a / 2.0**32).mean() - 0.5) < 5 * np.sqrt(1 / 12 / len(a))
        assert all(np.mean(a == b) < 1e-3 for b in draws[:i])


def test_first_latents() -> None:
    rng = np.random.default_rng(2)
    bits = rng.choice([-1.0, 1.0], (300, 200))
    latents = signs.first_latents(bits, key=9, tau=0.25).astype(np.float64)
    assert np.array_equal(np.sign(latents), bits)
    assert np.abs(latents).max() <= 0.5 and abs(np.abs(latents).mean() - 0.25) < 2e-3


def random_matrix(rows: int = 24, cols: int = 40) -> tuple[Array, Array, Array]:
    """(gradient, latents, bits)."""
    rng = np.random.default_rng(3)
    bits = rng.random((rows, cols)) < 0.5
    latents = signs.first_latents(2.0 * bits - 1.0, key=4, tau=0.25)
    return 1e-5 * rng.standard_normal((rows, cols)), latents, bits


@pytest.mark.parametrize("optimiser", signs.OPTIMISERS)
def test_a_step_at_rate_0_changes_only_moments(optimiser: str) -> None:
    grad, latents, bits = random_matrix()
    moments = signs.Moments.zeros(*bits.shape)
    hyper = signs.Hyper(eta=0.0, step=1)
    after, new, counts = signs.sign_step(grad, latents, bits, moments, hyper, optimiser=optimiser, key=4)
    assert after.tobytes() == latents.tobytes() and np.array_equal(new, bits)
    assert counts["flips"] == 0 and moments.mean > 0


@pytest.mark.parametrize("optimiser", signs.OPTIMISERS)
def test_latents_go_downhill_and_bits_follow(optimiser: str) -> None:
    grad, latents, bits = random_matrix()
    moments = signs.Moments.zeros(*bits.shape)
    start = bits.copy()
    for step in range(1, 80):
        hyper = signs.Hyper(eta=1e-2, step=step)
        latents, bits, _ = signs.sign_step(grad, latents, bits, moments, hyper, optimiser=optimiser, key=4)
    assert (bits != start).sum() > 50
    assert np.array_equal(bits, latents > 0) and (latents != 0).all()
    flipped = bits != start
    assert np.array_equal(bits[flipped], grad[flipped] < 0)  # each flip went against its gradient


def test_hysteresis_holds_bits_back() -> None:
    latents = np.array([[0.01, -0.01, 0.01, -0.01]], np.float16)
    bits = np.array([[True, True, False, False]])
    still = np.zeros((1, 4))
    for hyst, expected in ((0.0, [True, False, True, False]), (0.02, [True, True, False, False])):
        hyper = signs.Hyper(eta=0.0, step=1, hyst=hyst)
        assert signs.move(latents, bits, still, hyper, key=1)[1][0].tolist() == expected


def test_bounds_are_counted_and_zero_keeps_its_sign() -> None:
    latents = np.array([[0.999, -0.999, 2.0**-24, -(2.0**-24)]], np.float16)
    u = np.array([[-9.0, 9.0, 2.0**-24, -(2.0**-24)]])
    hyper = signs.Hyper(eta=1.0, step=3)
    after, _, counts = signs.move(latents, latents > 0, u, hyper, key=1)
    assert after[0].tolist() == [1.0, -1.0, 2.0**-24, -(2.0**-24)]
    assert counts == {"clamped": 2, "saturated": 2, "flips": 0}


def test_the_factored_moment_is_the_full_one_of_rank_one() -> None:
    rng = np.random.default_rng(5)
    q = np.outer(np.exp(rng.standard_normal(6)), np.exp(rng.standard_normal(9)))
    found = []
    for optimiser in ("fact-mom", "adam"):
        moments = signs.Moments.zeros(6, 9)
        signs.factors(q, moments, HYPER)
        found.append(signs.direction(q, moments, HYPER, optimiser))
    assert np.allclose(*found)
