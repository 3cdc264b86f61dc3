"""Reading whole small files, and writing files and folders that appear complete or not at all."""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from nvgpu.errors import FormatError, InputError, OutputError

Bytes = bytes | bytearray | memoryview | np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]

TEMPORARY = ".nvgpu-*.tmp"
"""Names of what is not written whole yet."""
_LFS = b"version https://git-lfs"


def byte_view(data: Bytes) -> memoryview:
    """The bytes of `data`, flat; C-contiguous arrays and buffers are not copied."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def is_lfs_pointer(head: bytes) -> bool:
    """Whether `head` begins a Git LFS pointer, which stands in for a file that was not downloaded."""
    return head.startswith(_LFS)


def reason(error: OSError) -> str:
    """What the operating system said, without the path."""
    return (error.strerror or type(error).__name__).lower()


def one_line(error: BaseException) -> str:
    """What an exception of a library says, on one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def require_regular(path: Path) -> int:
    """Size in bytes of a regular file.

    Raises:
        FormatError: a folder or another kind of file. InputError: nothing readable there.
    """
    try:
        status = path.stat()
    except OSError as e:
        raise InputError(f"{path}: {reason(e)}") from e
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a special file"
        raise FormatError(f"{path}: {kind}, expected a regular file")
    return status.st_size


def map_file(path: Path) -> mmap.mmap | bytes:
    """Read-only mapping of a regular file (empty bytes for an empty one); it outlives the open file.

    Raises:
        FormatError: not a regular file, or a Git LFS pointer. InputError: nothing readable there.
    """
    size = require_regular(path)
    try:
        with path.open("rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except (OSError, ValueError) as e:
        raise InputError(f"{path}: {reason(e) if isinstance(e, OSError) else e}") from e
    if is_lfs_pointer(mapped[: len(_LFS)]):
        raise FormatError(f"{path}: a Git LFS pointer, not the file itself; download it (git lfs pull)")
    return mapped


def read_file(path: Path) -> bytes:
    """The whole content; raises as `map_file`."""
    return bytes(map_file(path)[:])


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """An array that `np.save` wrote, without pickles; raises FormatError for anything else, else as `map_file`."""
    try:
        values = np.load(io.BytesIO(read_file(path)), allow_pickle=False)
    except InputError:
        raise
    except Exception as e:  # numpy evaluates the header with Python's parser, and takes zip files too
        raise FormatError(f"{path}: damaged, or no array of numpy: {one_line(e)}") from e
    if not isinstance(values, np.ndarray):
        raise FormatError(f"{path}: several arrays, expected one")
    return values


def parse_json_object(data: bytes, where: str) -> dict[str, Any]:
    """A JSON object from UTF-8 text.

    Raises:
        FormatError: anything else, NaN, infinities and keys that stand twice included; names `where`.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_unique_keys,
        )
    except UnicodeDecodeError as e:
        raise FormatError(f"{where}: not UTF-8 at byte {e.start}") from e
    except json.JSONDecodeError as e:
        raise FormatError(f"{where}: not JSON: {e.msg} at line {e.lineno} column {e.colno}") from e
    except (ValueError, RecursionError) as e:
        raise FormatError(f"{where}: not JSON that can be read: {e}") from e
    if not isinstance(value, dict):
        raise FormatError(f"{where}: found a JSON {type(value).__name__}, expected an object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number:.40} is too large a number")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"key {key!r} stands twice")
        values[key] = value
    return values


def read_json_object(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object; raises FormatError or InputError naming it."""
    return parse_json_object(read_file(path), str(path))


class AtomicFile:
    """A file that is written beside its final name and renamed to it on a clean exit; removed on any failure.

    Until then whatever stood at `path` is untouched. OSError becomes OutputError naming `shown`, or `path` without it.
    """

    def __init__(self, path: PathLike, shown: Path | None = None) -> None:
        self.path = Path(path)
        self.shown = shown or self.path
        self._temporary = self.path.parent / f".nvgpu-{secrets.token_hex(8)}.tmp"
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        with output_errors(self.shown):
            if self.path.exists() and not self.path.is_file():
                raise OutputError(f"{self.shown}: not a regular file, nothing was written")
            self._file = open(self._temporary, "xb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file = self.file
        try:
            if kind is None:
                self._commit(file)
        finally:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self._temporary.unlink()  # gone already after a commit

    def _commit(self, file: BinaryIO) -> None:
        with output_errors(self.shown):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(self._temporary, self.path)
            sync_folder(self.path.parent)

    @property
    def file(self) -> BinaryIO:
        if self._file is None:
            raise OutputError(f"{self.shown}: written to before it was opened")
        return self._file

    def write(self, data: Bytes) -> None:
        """Append."""
        with output_errors(self.shown):
            self.file.write(byte_view(data))

    def write_at(self, offset: int, data: Bytes) -> None:
        """Replace bytes already written; the position for `write` stays at the end."""
        with output_errors(self.shown):
            self.file.seek(offset)
            self.file.write(byte_view(data))
            self.file.seek(0, os.SEEK_END)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` on a clean exit and is removed on any failure.

    Raises:
        OutputError: `path` exists and is not an empty folder, or cannot be written.
    """
    with output_errors(path):
        if path.is_symlink() or path.name in ("", ".."):  # no folder can be renamed to one of these
            raise OutputError(
                f"{path}: a symbolic link or no name of its own, expected the path of a new folder"
            )
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise OutputError(f"{path}: exists and is not an empty folder, nothing was written")
        temporary = path.parent / f".nvgpu-{secrets.token_hex(8)}.tmp"
        temporary.mkdir()
    try:
        yield temporary
        with output_errors(path):
            if path.exists():
                path.rmdir()
            temporary.rename(path)
            sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_target(output: Path, inputs: Iterable[Path] = ()) -> None:
    """A file can appear at `output`, and it is none of `inputs`; to be called before any work.

    Raises:
        InputError: the output is one of the inputs.
        OutputError: its folder is missing or not writable, or it is neither absent nor a regular file.
    """
    try:
        mode: int | None = output.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as e:
        raise OutputError(f"output {output}: {reason(e)}") from e
    if mode is not None:
        for path in inputs:
            if os.path.exists(path) and os.path.samefile(output, path):
                raise InputError(f"output {output} is the input {path}; expected another path")
        if stat.S_ISDIR(mode):
            raise OutputError(f"output {output} is a folder, expected a file path")
        if not stat.S_ISREG(mode):
            raise OutputError(f"output {output} is a special file, expected a regular file or none")
    folder = output.parent
    if not folder.is_dir():
        raise OutputError(f"output {output}: folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"output {output}: folder {folder} is not writable")


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Turn OSError into OutputError naming `path`."""
    try:
        yield
    except OSError as e:
        raise OutputError(f"{path}: cannot be written: {reason(e)}") from e


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable, where the system can."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
