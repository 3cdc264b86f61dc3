"""What a stopped compression leaves for the next run: `OUT.cmf.partial/` with Grams and finished tensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvgpu.encode.grams import GramFolder
from nvgpu.errors import OutputError
from nvgpu.formats.files import AtomicFile, output_errors, read_file, read_json_object

_KEY = "key.json"


class Partial:
    """The folder beside an output; `key` is everything that its bytes depend on."""

    def __init__(self, output: Path, key: Mapping[str, Any]) -> None:
        self.path = output.with_name(output.name + ".partial")
        self.key = json.loads(json.dumps(key))
        self.grams = GramFolder(self.path)

    def open(self) -> int:
        """Keep what a run of the same key left, drop another's; returns the number of finished tensors.

        Raises:
            OutputError: something else stands there.
        """
        if self.path.exists() and not (self.path / _KEY).is_file():
            raise OutputError(
                f"{self.path}: exists and is no folder of an unfinished compression; remove it or choose another output"
            )
        if self.path.exists() and read_json_object(self.path / _KEY) != self.key:
            self.remove()
        if not self.path.exists():
            with output_errors(self.path):
                self.path.mkdir()
            self._write(_KEY, json.dumps(self.key).encode())
        return len(list(self.path.glob("*.row.json")))

    def load(self, name: str) -> tuple[bytes, dict[str, Any]] | None:
        """Payload and report of a finished tensor; None where it is not finished."""
        row = self.path / f"{name}.row.json"
        if not row.is_file():
            return None
        return bytes(read_file(self.path / f"{name}.blr")), read_json_object(row)

    def save(self, name: str, payload: bytes, row: Mapping[str, Any]) -> None:
        """Keep a finished tensor; its report is written last and marks it complete."""
        self._write(f"{name}.blr", payload)
        self._write(f"{name}.row.json", json.dumps(row).encode())

    def remove(self) -> None:
        """The folder is no longer needed."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> None:
        with AtomicFile(self.path / name) as out:
            out.write(data)
