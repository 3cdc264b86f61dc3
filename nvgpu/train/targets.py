"""Teacher targets: the top-k next-token distribution of every training and held-out token, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.model.executor import Executor
from nvgpu.progress import Progress

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Targets:
    """`ids` u32 and `p` f32, both `[batches, batch * window, top_k]`; probabilities sum to 1 over the k."""

    ids: Array
    p: Array

    @staticmethod
    def nbytes(batches: int, rows: int, k: int) -> int:
        """Host bytes that so many targets take."""
        return 8 * batches * rows * k


_PARTS_OF_A_STREAM = 16  # batches that share the upload of a streamed layer


def renormalised(p: Array) -> Array:
    """`p` with its last axis scaled to sum to 1, computed in float64 and stored as f32."""
    wide = p.astype(np.float64)
    scaled: Array = wide / wide.sum(axis=-1, keepdims=True)
    return scaled.astype(np.float32)


def teacher_targets(
    teacher: Executor, batches: Array, k: int, rows_at_once: int, progress: Progress
) -> Targets:
    """Run the teacher over `[batches, rows]` ids."""
    count, rows = batches.shape
    targets = Targets(np.empty((count, rows, k), np.uint32), np.empty((count, rows, k), np.float32))
    progress.start("teacher", count * rows, "tokens")
    places = [
        (b, slice(first, first + rows_at_once))
        for b in range(count)
        for first in range(0, rows, rows_at_once)
    ]
    at_once = _PARTS_OF_A_STREAM if teacher.net.stream is not None else 1
    for i in range(0, len(places), at_once):
        group = places[i : i + at_once]
        for place, (ids, p) in zip(group, teacher.topk_of([batches[x] for x in group], k), strict=True):
            targets.ids[place] = ids
            targets.p[place] = renormalised(p)
            progress.advance(len(ids))
    progress.stop()
    return targets
