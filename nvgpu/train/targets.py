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
    for b in range(count):
        for first in range(0, rows, rows_at_once):
            part = slice(first, first + rows_at_once)
            ids, p = teacher.topk(batches[b, part], k)
            targets.ids[b, part] = ids
            targets.p[b, part] = renormalised(p)
            progress.advance(len(batches[b, part]))
    progress.stop()
    return targets
