"""Folders that appear complete or not at all, and the byte views behind every write."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nvgpu.errors import FormatError, InputError, OutputError
from nvgpu.formats.files import (
    AtomicFile,
    atomic_folder,
    byte_view,
    map_file,
    parse_json_object,
    read_json_object,
)


def test_byte_views() -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    for data in (floats, floats.data, floats.tobytes(), bytearray(floats.tobytes())):
        view = byte_view(data)
        assert view.format == "B" and bytes(view) == floats.tobytes()
    assert bytes(byte_view(floats[:, 1])) == floats[:, 1].tobytes()
    assert len(byte_view(np.zeros((0, 3)))) == 0


def test_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with atomic_folder(target) as folder:
        (folder / "a").write_text("x")
        assert not target.exists()
    assert (target / "a").read_text() == "x"
    assert os.listdir(tmp_path) == ["out"]


def test_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("x")
    assert os.listdir(tmp_path / "out") == ["a"]


def test_failed_folder_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("x")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_occupied_places(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("full", "file"):
        with (
            pytest.raises(OutputError, match=f"{name}: exists and is not an empty folder"),
            atomic_folder(tmp_path / name),
        ):
            pass
    with pytest.raises(OutputError, match="out: cannot be written"), atomic_folder(tmp_path / "no" / "out"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert map_file(tmp_path / "empty")[:] == b""
    with pytest.raises(InputError, match=r"gone\.json: no such file"):
        read_json_object(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "key 'a' stands twice"),
        ('{"a": 1e999}', "1e999 is too large a number"),
        ("{" + ", ".join(f'"{i}": 0' for i in range(100_000)) + ', "0": 1}', "key '0' stands twice"),
    ],
)
def test_json_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_json_object(text.encode(), "here")


def test_errors_name_the_output_not_the_temporary_file(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="^out/a: cannot be written"),
        AtomicFile(tmp_path / "no" / "a", Path("out/a")),
    ):
        pass
