"""Teacher targets: the top-k next-token distribution of every training and held-out token, on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    @classmethod
    def empty(cls, batches: int, rows: int, k: int) -> Targets:
        """Room for so many, in host memory."""
        return cls(np.empty((batches, rows, k), np.uint32), np.empty((batches, rows, k), np.float32))

    @staticmethod
    def nbytes(batches: int, rows: int, k: int) -> int:
        """Host bytes that so many targets take."""
        return 8 * batches * rows * k


_PARTS_OF_A_STREAM = 16  # forward passes that share the upload of a streamed layer


def renormalised(p: Array) -> Array:
    """`p` with its last axis scaled to sum to 1, computed in float64 and stored as f32."""
    wide = p.astype(np.float64)
    scaled: Array = wide / wide.sum(axis=-1, keepdims=True)
    return scaled.astype(np.float32)


def batches_at_once(teacher: Executor, parts: int) -> int:
    """Batches of so many parts that share the upload of a streamed layer; 1 where all layers are resident."""
    return max(_PARTS_OF_A_STREAM // parts, 1) if teacher.net.stream is not None else 1


def teacher_targets(
    teacher: Executor,
    batches: Array,
    rows_at_once: int,
    targets: Targets,
    progress: Progress,
    wrote: Callable[[list[int]], None] = lambda batches: None,
    wanted: Sequence[int] | None = None,
) -> Targets:
    """Run the teacher over `[batches, rows]` ids, or those `wanted`, into `targets`; `wrote` is told which are there."""
    rows, k = batches.shape[1], targets.ids.shape[-1]
    wanted = range(len(batches)) if wanted is None else wanted
    parts = [slice(first, first + rows_at_once) for first in range(0, rows, rows_at_once)]
    at_once = batches_at_once(teacher, len(parts))
    total = len(batches) * rows
    progress.start("teacher", total, "tokens", done=total - len(wanted) * rows)
    for i in range(0, len(wanted), at_once):
        group = list(wanted[i : i + at_once])
        places = [(b, part) for b in group for part in parts]
        for place, (ids, p) in zip(places, teacher.topk_of([batches[x] for x in places], k), strict=True):
            targets.ids[place] = ids
            targets.p[place] = renormalised(p)
            progress.advance(len(ids))
        wrote(group)
    progress.stop()
    return targets
