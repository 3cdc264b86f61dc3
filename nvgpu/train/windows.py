"""Calibration windows: cut, shuffled, the tail held out, and the batch order of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from nvgpu.errors import InputError

_MASK = (1 << 64) - 1
Ids = np.ndarray[Any, np.dtype[np.uint32]]
Weights = np.ndarray[Any, np.dtype[np.float32]]
Rows = TypeVar("Rows", bound=np.ndarray[Any, Any])


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
    """`train` and `held_out` are `[batches, batch * window]` ids; `stream` goes on to order the epochs.

    The weights, f32 of the same shapes, say what each row counts in the loss; without any every row counts 1.
    """

    train: Ids
    held_out: Ids
    stream: Xorshift64
    train_weights: Weights | None = None
    held_out_weights: Weights | None = None

    def row_weights(self, batch: int) -> Weights:
        """Weights of the rows of a batch, the held-out batches counted behind those of training."""
        held, i = self.held_out_weights, batch - len(self.train)
        if i < 0:
            held, i = self.train_weights, batch
        return np.ones(self.train.shape[1], np.float32) if held is None else held[i]

    @property
    def scored_batches(self) -> int:
        """Training batches with a row that counts."""
        if self.train_weights is None:
            return len(self.train)
        return int(self.train_weights.any(axis=1).sum())

    def epoch_order(self) -> list[int]:
        """Batch order of the next epoch."""
        return self.stream.permutation(len(self.train))


def cut(tokens: Rows, window: int) -> Rows:
    """`[windows, window]`: the whole windows of `tokens`, or of their weights, from the start."""
    count = len(tokens) // window
    whole: Rows = tokens[: count * window].reshape(count, window)  # type: ignore[assignment]
    return whole


def split(
    sources: Sequence[Ids],
    *,
    window: int,
    batch: int,
    eval_windows: int,
    seed: int,
    where: str = "the sources",
    weights: Sequence[Weights] | None = None,
) -> Windows:
    """Shuffle the windows of all sources (named `where` in errors) and hold out the tail; `weights` are those of their rows.

    Raises:
        InputError: fewer held-out windows than a batch, too little text for one batch of training, or no row that counts.
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
    order = stream.permutation(len(windows))
    train, tail = _parted(windows[order], held, batch)
    if weights is None:
        return Windows(train, tail, stream)
    rows = np.concatenate([cut(part, window) for part in weights])
    scored = _parted(rows[order], held, batch)
    # perplexity cannot score a window's last row, whose next token is not in the window
    for part, name in ((scored[0], "training"), (scored[1].reshape(held, window)[:, :-1], "held-out")):
        if not part.any():
            raise InputError(
                f"--loss-on answer: none of the {part.size} {name} rows predicts a token of an assistant's turn; expected "
                f"conversations (.jsonl with messages) in {where}"
            )
    return Windows(train, tail, stream, *scored)


def _parted(rows: Rows, held: int, batch: int) -> tuple[Rows, Rows]:
    """`[windows, window]` as whole batches `[batches, batch * window]` of training and of the last `held` windows."""
    train, tail = rows[:-held], rows[-held:]
    batches, width = len(train) // batch, batch * rows.shape[1]
    whole: Any = train[: batches * batch]
    return whole.reshape(batches, width), cast(Any, tail).reshape(held // batch, width)
