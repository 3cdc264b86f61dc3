"""The resumable state of a run: a folder a saved step, which appears complete or not at all."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from nvgpu.errors import InputError, Interrupted, OutputError
from nvgpu.formats.files import TEMPORARY, AtomicFile, atomic_folder, read_array, read_json_object
from nvgpu.train.loop import Distillation

Array = np.ndarray[Any, Any]

_STEP = re.compile(r"step-(\d{8})")
_VERSION = 1


class StateFolder:
    """Saved steps under `path`; `key` tells runs apart: equal keys mean that a run can go on from the other's state.

    `replace`: the state before is removed first, so that one at a time takes room; a save that is cut off leaves none.
    """

    def __init__(self, path: Path, key: Mapping[str, Any], *, replace: bool = False) -> None:
        self.path = path
        self.replace = replace
        self.key = json.loads(json.dumps(key))  # as it comes back from a file

    def save(self, loop: Distillation) -> Path:
        """Write the loop's state; the one before it is removed once this one is durable, or before it with `replace`.

        Raises:
            OutputError: it cannot be written; the state before is untouched, without `replace`.
        """
        facts, arrays = loop.snapshot()
        target = self.path / f"step-{loop.tried:08d}"
        if target.exists():
            return target
        for left in self.path.glob(TEMPORARY):  # of a save that was killed
            shutil.rmtree(left, ignore_errors=True)
        if self.replace:
            self._remove_all_but(target)
        with atomic_folder(target) as folder:
            for name, values in arrays.items():
                data = io.BytesIO()
                np.save(data, values, allow_pickle=False)
                _write(folder / f"{name}.npy", data.getvalue(), target)
            document = {"version": _VERSION, "key": self.key, "state": facts}
            _write(folder / "state.json", json.dumps(document).encode(), target)
        self._remove_all_but(target)
        return target

    def _remove_all_but(self, target: Path) -> None:
        for old in self._saved():
            if old != target:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, loop: Distillation) -> int | None:
        """Put the newest saved state into the loop and return its steps; None where there is none.

        Raises:
            InputError: the state is of another run, or damaged.
        """
        saved = self._saved()
        if not saved:
            return None
        folder = saved[-1]
        document = read_json_object(folder / "state.json")
        if document.get("version") != _VERSION:
            raise InputError(
                f"{folder}: state version {document.get('version')!r}, this program reads {_VERSION}"
            )
        self._require_same_run(folder, document.get("key", {}))
        try:
            arrays = {name: read_array(folder / f"{name}.npy") for name in loop.ARRAYS}
            loop.restore(document["state"], arrays)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as e:
            raise InputError(f"{folder}: the saved state is damaged: {type(e).__name__}: {e}") from e
        return loop.tried

    def _require_same_run(self, folder: Path, theirs: Any) -> None:
        for part, ours in self.key.items():
            found = theirs.get(part) if isinstance(theirs, dict) else None
            if found != ours:
                raise InputError(
                    f"{folder}: the state is of another run: {part} was {found!r}, now it is {ours!r}"
                )

    def _saved(self) -> list[Path]:
        """Complete states, oldest first."""
        if not self.path.is_dir():
            return []
        return sorted(p for p in self.path.iterdir() if _STEP.fullmatch(p.name) and p.is_dir())


class Keeper:
    """Saves a run's state every so many steps, and when a signal asks it to stop."""

    def __init__(self, folder: StateFolder, every: int) -> None:
        self.folder = folder
        self.every = every
        self._signal: int | None = None

    def after_step(self, loop: Distillation) -> None:
        """To be called between steps.

        Raises:
            Interrupted: a signal came; the state has been saved.
        """
        if self._signal is not None or loop.tried % self.every == 0:
            loop.progress.doing("saving")
            began = time.perf_counter()
            try:
                self.folder.save(loop)
                done = {"step": loop.state.done, "tried": loop.tried}
                loop.journal.add("saved", **done, seconds=time.perf_counter() - began)
            except OutputError as e:
                if self._signal is not None:
                    raise
                before = "there is none to go on from" if self.folder.replace else "the one before it is kept"
                loop.progress.say(f"the state was not saved, {before}: {e}")
        if self._signal is not None:
            raise Interrupted(
                f"interrupted; go on with the same command and --resume {self.folder.path}",
                128 + self._signal,
            )

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, the first Ctrl-C or SIGTERM lets the step finish; a second one ends the process as ever."""

        def note(number: int, frame: FrameType | None) -> None:
            self._signal = number
            signal.signal(number, before[signal.Signals(number)])

        kinds = (signal.SIGINT, signal.SIGTERM)
        before = {kind: signal.getsignal(kind) for kind in kinds}
        for kind in kinds:
            signal.signal(kind, note)
        try:
            yield
        finally:
            for kind in kinds:
                signal.signal(kind, before[kind])


def _write(path: Path, data: bytes, shown: Path) -> None:
    with AtomicFile(path, shown) as out:
        out.write(data)
