"""The rank rule: exact bits, the budget never exceeded, clear refusals."""

import re

import numpy as np
import pytest

from nvgpu.encode.rank import blr_bits, blr_bpw, check_shape, choose_rank, max_rank
from nvgpu.errors import InputError


def test_bits_count_every_stored_bit():
    m, n, r = 24, 40, 16
    signs = m * r + r * n
    scales = 16 * (m + n + r)
    assert blr_bits(m, n, r, 1) == signs + scales
    assert blr_bits(m, n, r, 2) == 2 * (signs + scales)


@pytest.mark.parametrize(
    ("m", "n", "bpw", "paths", "rank"),
    [(128, 256, 1.0, 1, 64), (256, 256, 1.0, 1, 104), (1024, 256, 1.0, 1, 184), (1024, 256, 1.0, 2, 80),
     (512, 256, 1.0, 2, 64), (256, 512, 1.0, 1, 144)],
)  # fmt: skip
def test_ranks_of_the_bundled_shapes(m, n, bpw, paths, rank):
    assert choose_rank("w", m, n, bpw, paths) == rank


def test_rank_is_the_largest_multiple_of_8_that_fits():
    rng = np.random.default_rng(0)
    for _ in range(200):
        m, n = int(rng.integers(8, 3000)), 8 * int(rng.integers(1, 400))
        bpw, paths = float(rng.uniform(0.1, 2.0)), int(rng.integers(1, 3))
        try:
            r = choose_rank("w", m, n, bpw, paths)
        except InputError:
            assert blr_bpw(m, n, 8, paths) > bpw
            continue
        assert r % 8 == 0 and blr_bpw(m, n, r, paths) <= bpw
        assert r == max_rank(m, n) or blr_bpw(m, n, r + 8, paths) > bpw


def test_a_budget_met_exactly_is_not_lost_to_rounding():
    for m, n, r in [(128, 256, 64), (1000, 504, 120), (96, 40, 24)]:
        assert choose_rank("w", m, n, blr_bpw(m, n, r, 1), 1) in (r, r - 8)
    assert choose_rank("w", 256, 512, blr_bits(256, 512, 64, 1) / (256 * 512), 1) == 64


def test_rank_stops_at_what_a_decomposition_can_fill():
    assert max_rank(250, 512) == 248
    assert choose_rank("w", 250, 512, 20.0, 1) == 248
    assert choose_rank("w", 4, 512, 20.0, 1) == 8


def test_unreachable_target_names_the_tensor_and_an_accepted_minimum():
    said = r"^layers\.0\.k \[128, 256\]: 0\.1 bits per weight .* --paths 1 it is"
    with pytest.raises(InputError, match=said) as caught:
        choose_rank("layers.0.k", 128, 256, 0.1, 2)
    least = re.search(r"--paths 2 is ([0-9.]+); with --paths 1 it is ([0-9.]+)", str(caught.value))
    assert least is not None
    assert choose_rank("layers.0.k", 128, 256, float(least[1]), 2) == 8
    assert choose_rank("layers.0.k", 128, 256, float(least[2]), 1) == 8


@pytest.mark.parametrize("bpw", [0.0, -1.0, float("nan"), float("inf")])
def test_senseless_budget(bpw):
    with pytest.raises(InputError, match="--bpw"):
        choose_rank("w", 128, 256, bpw, 1)


def test_senseless_path_count():
    with pytest.raises(InputError, match="--paths 3"):
        choose_rank("w", 128, 256, 1.0, 3)


@pytest.mark.parametrize("shape", [(8, 12), (8,), (2, 8, 8), (0, 8)])
def test_shapes_that_cannot_be_stored_are_named(shape):
    with pytest.raises(InputError, match=r"layers\.0\.q"):
        check_shape("layers.0.q", shape)
