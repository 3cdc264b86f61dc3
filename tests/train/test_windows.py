"""The window order is part of the contract: the same seed gives the same batches on every machine."""

from __future__ import annotations

import numpy as np
import pytest

from nvgpu.errors import InputError
from nvgpu.train.schedule import learning_rate
from nvgpu.train.windows import Xorshift64, cut, split, splitmix64


def test_splitmix_and_xorshift_vectors() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # published first output for seed 0
    stream = Xorshift64(0)
    x = 0xE220A8397B1DCDAF
    for _ in range(3):
        x ^= (x << 13) & (1 << 64) - 1
        x ^= x >> 7
        x ^= (x << 17) & (1 << 64) - 1
        assert stream.next() == x


def test_permutation_is_one() -> None:
    stream = Xorshift64(42)
    assert sorted(stream.permutation(17)) == list(range(17))
    assert stream.permutation(17) != Xorshift64(42).permutation(17)


def test_split_holds_out_the_shuffled_tail_in_whole_batches() -> None:
    sources = [np.arange(103, dtype=np.uint32), np.arange(1000, 1061, dtype=np.uint32)]
    windows = split(sources, window=10, batch=2, eval_windows=5, seed=7)
    everything = np.concatenate([cut(s, 10) for s in sources])
    order = Xorshift64(7).permutation(16)
    assert np.array_equal(windows.held_out.reshape(-1, 10), everything[order][-4:])
    assert np.array_equal(windows.train.reshape(-1, 10), everything[order][:12])
    stream = Xorshift64(7)
    stream.permutation(16)
    assert windows.epoch_order() == stream.permutation(6)
    assert windows.epoch_order() == stream.permutation(6)


def test_too_little() -> None:
    ids = np.arange(100, dtype=np.uint32)
    with pytest.raises(InputError, match="--eval-windows 3: fewer than one batch of 4"):
        split([ids], window=10, batch=4, eval_windows=3, seed=1)
    with pytest.raises(InputError, match="found 10 whole windows of 10 tokens, expected at least 12"):
        split([ids], window=10, batch=4, eval_windows=8, seed=1)


def test_schedule() -> None:
    rates = [learning_rate(1.0, d, 200) for d in range(1, 201)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[101] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert learning_rate(3e-2, 1, 1) == 3e-2
