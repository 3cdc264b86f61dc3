"""Calibration windows: cut, shuffled, the tail held out, and the batch order of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.errors import InputError

_MASK = (1 << 64) - 1
Ids = np.ndarray[Any, np.dtype[np.uint32]]


def splitmix64(seed: int) -> int:
    """The first output of splitmix64 (Steele, Lea, Flood 2014) from `seed`."""
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Xorshift64:
    """Marsaglia's xorshift64 (13, 7, 17), started at splitmix64(seed); one stream for the whole run."""

    def __init__(self, seed: int) -> None:
        self.state = splitmix64(seed) or 1

    def next(self) -> int:
        x = self.state
        x ^= (x << 13) & _MASK
        x ^= x >> 7
        x ^= (x << 17) & _MASK
        self.state = x
        return x

    def permutation(self, n: int) -> list[int]:
        """Fisher-Yates over 0..n-1: i = n-1 … 1, j = next mod (i + 1)."""
        order = list(range(n))
        for i in range(n - 1, 0, -1):
            j = self.next() % (i + 1)
            order[i], order[j] = order[j], order[i]
        return order


@dataclass(frozen=True)
class Windows:
    """`train` and `held_out` are `[batches, batch * window]` ids; `stream` goes on to order the epochs."""

    train: Ids
    held_out: Ids
    stream: Xorshift64

    def epoch_order(self) -> list[int]:
        """Batch order of the next epoch."""
        return self.stream.permutation(len(self.train))


def cut(tokens: Ids, window: int) -> Ids:
    """`[windows, window]`: the whole windows of `tokens` from its start."""
    count = len(tokens) // window
    return tokens[: count * window].reshape(count, window)


def split(
    sources: Sequence[Ids],
    *,
    window: int,
    batch: int,
    eval_windows: int,
    seed: int,
    where: str = "the sources",
) -> Windows:
    """Shuffle the windows of all sources (named `where` in errors) and hold out the tail.

    Raises:
        InputError: fewer held-out windows than a batch, or too little text for one batch of training.
    """
    held = eval_windows // batch * batch
    if held == 0:
        raise InputError(
            f"--eval-windows {eval_windows}: fewer than one batch of {batch}; the best checkpoint needs at least {batch}"
        )
    windows = np.concatenate([cut(tokens, window) for tokens in sources])
    if len(windows) < held + batch:
        raise InputError(
            f"--calib: found {len(windows)} whole windows of {window} tokens, expected at least {held + batch} "
            f"({held} held out and one batch of {batch}) in {where}"
        )
    stream = Xorshift64(seed)
    shuffled = windows[stream.permutation(len(windows))]
    train, tail = shuffled[:-held], shuffled[-held:]
    batches = len(train) // batch
    return Windows(
        np.ascontiguousarray(train[: batches * batch].reshape(batches, batch * window)),
        np.ascontiguousarray(tail.reshape(held // batch, batch * window)),
        stream,
    )
