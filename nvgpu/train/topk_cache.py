"""The teacher's targets on disk: written as the teacher pass goes, so that it is done once, and goes on where it was cut off.

Layout, little-endian: 4096 bytes of JSON padded with blanks, ids u32 and p f32 `[batches, rows, top_k]`, one byte a batch that
is 1 when the batch is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.errors import InputError
from nvgpu.formats.files import output_errors, parse_json_object, require_regular
from nvgpu.train.targets import Targets

_HEAD = 4096
_FORMAT = "nvgpu top-k targets 1"

Array = np.ndarray[Any, Any]


class TopkCache:
    """Targets `[batches, rows, top_k]` in the file at `path`, whose `key` says what they are of."""

    def __init__(self, path: Path, key: Mapping[str, Any], shape: tuple[int, int, int]) -> None:
        """Open the file, or make it where there is none.

        Raises:
            InputError: a file of something else; it is left alone.
            OutputError: it cannot be written.
        """
        self.path = path
        head = json.loads(json.dumps({"format": _FORMAT, "key": dict(key), "shape": shape}))
        count = int(np.prod(shape))
        if path.exists():
            self._require(head, _HEAD + 8 * count + shape[0])
        else:
            self._make(head, _HEAD + 8 * count + shape[0])
        with output_errors(path):
            self.ids = np.memmap(path, "<u4", "r+", _HEAD, shape)
            self.p = np.memmap(path, "<f4", "r+", _HEAD + 4 * count, shape)
            self._done = np.memmap(path, np.uint8, "r+", _HEAD + 8 * count, (shape[0],))

    @property
    def targets(self) -> Targets:
        """All targets, mapped from the file; only meaningful where nothing is `missing`."""
        return Targets(self.ids, self.p)

    @property
    def missing(self) -> list[int]:
        """Batches that are not written yet."""
        return [int(i) for i in np.flatnonzero(np.asarray(self._done) != 1)]

    def wrote(self, batches: list[int]) -> None:
        """Mark batches as written, once their targets are on the disk."""
        with output_errors(self.path):
            self.ids.flush()
            self.p.flush()
            self._done[batches] = 1
            self._done.flush()

    def _make(self, head: dict[str, Any], size: int) -> None:
        text = json.dumps(head).encode()
        if len(text) > _HEAD:
            raise InputError(
                f"--topk-cache {self.path}: its header takes {len(text)} bytes, {_HEAD} are there"
            )
        with output_errors(self.path), open(self.path, "xb") as file:
            try:
                if hasattr(
                    os, "posix_fallocate"
                ):  # a full disk is an error here, not a fault in mapped memory later
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
                file.write(text.ljust(_HEAD))
            except OSError:
                self.path.unlink()
                raise

    def _require(self, head: dict[str, Any], size: int) -> None:
        found_size = require_regular(self.path)
        with open(self.path, "rb") as file:
            start = file.read(_HEAD)
        if _FORMAT.encode() not in start:
            raise InputError(f"--topk-cache {self.path}: no cache of top-k targets; expected one, or no file")
        found = parse_json_object(start, str(self.path))
        if found == head and found_size == size:
            return
        theirs, ours = found.get("key", {}), head["key"]
        parts = [k for k in ours if not isinstance(theirs, dict) or theirs.get(k) != ours[k]]
        what = ", ".join(parts) or ("shape" if found.get("shape") != head["shape"] else "size")
        raise InputError(
            f"--topk-cache {self.path}: made for another {what}; give another path, or delete the file"
        )
