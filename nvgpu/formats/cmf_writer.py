"""Writing CMF files: tensor by tensor, in one file or in shards, complete or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from nvgpu.errors import OutputError
from nvgpu.formats import codecs
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.envelope import (
    BINARY_MASKS,
    DATA_ALIGN,
    ENVELOPE_BYTES,
    MAX_NDIM,
    SECTIONS,
    TENSOR_ALIGN,
    TENSOR_DIRECTORY,
    TWO_FIELD_QUANT,
    Envelope,
    TensorEntry,
    directory_bytes,
    pack_directory,
)
from nvgpu.formats.files import AtomicFile, Bytes, PathLike, byte_view
from nvgpu.formats.hash64 import Hash64, hash64
from nvgpu.formats.part import HASHED_SECTIONS, MOST_SHARDS, shard_path

Array = np.ndarray[Any, Any]
Payload = Bytes | Iterable[Bytes]
Record = tuple[str, Dtype, tuple[int, ...]]


NO_ID = "0" * 16  # stands in a shard's header until the tensors are known


class TensorWriter(Protocol):
    """What takes the tensors of a model one by one."""

    def write(self, name: str, payload: Payload) -> None: ...


class CmfWriter:
    """Writes a file tensor by tensor, in the order of `entries`; use as a context manager.

    The file appears at `path` on a clean exit, complete; until then, and on any failure, what stood there is
    untouched. `header` is copied; its format, version and section_hashes are set here. `sections` are masks and
    index, as bytes.
    """

    def __init__(
        self,
        path: PathLike,
        header: Mapping[str, Any],
        entries: Iterable[Record],
        tokenizer_json: bytes | None,
        sections: Mapping[str, bytes] | None = None,
    ) -> None:
        self.path = Path(path)
        self._out = AtomicFile(path)
        self._pending = [(name, Dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in entries]
        given = {**(sections or {}), "vocab": tokenizer_json or b""}
        self._sections = {name: given[name] for name in HASHED_SECTIONS if given.get(name)}
        self._header = self._header_json(header)
        self._done: list[TensorEntry] = []
        self._check_entries()
        names = [name.encode("utf-8") for name, _, _ in self._pending]
        self._directory_at = ENVELOPE_BYTES + len(self._header)
        self._data_at = _aligned(self._directory_at + directory_bytes(names), DATA_ALIGN)
        self._position = 0  # bytes of the data section written so far
        self._sealed = False
        self.content = (
            hashlib.sha256() if "shard" in header else None
        )  # of the payloads, for the id of the set

    def __enter__(self) -> Self:
        self._out.__enter__()
        try:
            self._out.write(bytes(self._data_at))
        except BaseException as e:
            self._out.__exit__(type(e), e, e.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._sealed:
            try:
                self.seal()
            except BaseException as e:
                self._out.__exit__(type(e), e, e.__traceback__)
                raise
        self._out.__exit__(kind, error, trace)

    def write(self, name: str, payload: Payload) -> None:
        """Append the next tensor; `payload` is bytes, an array, or an iterable of either.

        Raises:
            OutputError: not the next tensor of the directory, a payload of the wrong size, or a failed write.
            FormatError: a malformed payload of a type that states its own size.
        """
        index = len(self._done)
        if index >= len(self._pending) or self._pending[index][0] != name:
            due = self._pending[index][0] if index < len(self._pending) else "no more tensors"
            raise OutputError(f"{self.path}: tensor {name} was written, expected {due}")
        _, dtype, shape = self._pending[index]
        padding = _aligned(self._position, TENSOR_ALIGN) - self._position
        self._out.write(bytes(padding))
        offset = self._position + padding
        digest, size = Hash64(), 0
        for part in self._checked(name, dtype, shape, payload):
            view = byte_view(part)
            self._out.write(view)
            digest.update(view)
            if self.content is not None:
                self.content.update(view)
            size += len(view)
        self._check_size(name, dtype, shape, size)
        self._position = offset + size
        self._done.append(TensorEntry(name, dtype, shape, offset, size, digest.digest()))

    def _checked(self, name: str, dtype: Dtype, shape: tuple[int, ...], payload: Payload) -> Iterable[Bytes]:
        """The parts of a payload; one that states its own size is put together and checked first."""
        where = f"{self.path}: tensor {name}"
        if codecs.nbytes(dtype, shape, where) is not None:
            return _parts(payload)
        whole = b"".join(map(byte_view, _parts(payload)))
        codecs.check_payload(whole, dtype, shape, where)
        return (whole,)

    def _check_size(self, name: str, dtype: Dtype, shape: tuple[int, ...], size: int) -> None:
        where = f"{self.path}: tensor {name}"
        expected = codecs.nbytes(dtype, shape, where)
        if expected is not None and size != expected:
            raise OutputError(f"{where}: payload of {size} bytes does not fit {dtype.label} {list(shape)}")

    def _header_json(self, header: Mapping[str, Any]) -> bytes:
        hashes = {name: f"{hash64(data):016x}" for name, data in self._sections.items()}
        full = {**header, "format": "cmf", "version": 2, "section_hashes": hashes}
        try:
            return json.dumps(full, allow_nan=False, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError) as e:
            raise OutputError(f"{self.path}: header cannot be written as JSON: {e}") from e

    def _check_entries(self) -> None:
        seen = set()
        for name, dtype, shape in self._pending:
            what = f"{self.path}: tensor {name}"
            if name in seen:
                raise OutputError(f"{what} is listed twice")
            if len(shape) > MAX_NDIM or any(not 0 <= n < 1 << 32 for n in shape):
                raise OutputError(f"{what}: shape {list(shape)}, expected at most {MAX_NDIM} axes below 2^32")
            if len(name.encode("utf-8")) >= 1 << 16:
                raise OutputError(f"{what[:200]}: name longer than 65535 bytes")
            codecs.nbytes(dtype, shape, what)
            seen.add(name)

    @property
    def paths(self) -> list[Path]:
        """The file that appears."""
        return [self.path]

    def seal(self, set_id: str | None = None) -> None:
        """Write everything but the tensors; `set_id` takes the place of NO_ID in the header.

        Raises:
            OutputError: a tensor is missing, or a failed write.
        """
        missing = self._pending[len(self._done) :]
        if missing:
            raise OutputError(f"{self.path}: tensor {missing[0][0]} was not written ({len(missing)} missing)")
        if set_id is not None:
            empty, known = (f'"id":"{i}"'.encode("ascii") for i in (NO_ID, set_id))
            self._header = self._header.replace(empty, known, 1)
        directory = pack_directory(self._done)
        spans = dict.fromkeys(SECTIONS, (0, 0))
        spans["header"] = (ENVELOPE_BYTES, len(self._header))
        spans["directory"] = (self._directory_at, len(directory))
        spans["data"] = (self._data_at, self._position)
        end = self._data_at + self._position
        for name, data in self._sections.items():
            self._out.write(data)
            spans[name] = (end, len(data))
            end += len(data)
        envelope = Envelope(self._features(), spans, hash64(self._header), hash64(directory))
        self._out.write_at(0, envelope.pack() + self._header + directory)
        self._sealed = True

    def _features(self) -> int:
        masks = BINARY_MASKS if "masks" in self._sections else 0
        two_field = any(e.dtype in codecs.TWO_FIELD for e in self._done)
        return TENSOR_DIRECTORY | masks | (TWO_FIELD_QUANT if two_field else 0)


class ShardWriter:
    """Writes a model as `CmfWriter` does, in as many files as `shard_bytes` asks for; one file keeps its name.

    Tensors stay in order; a new shard begins where the payloads would pass `shard_bytes` (a tensor larger than that has
    a shard of its own). `sizes` are the payloads' bytes or bounds of them. Tokenizer, sections, chat bundle, skills and
    `hf` stand in the first shard. The files appear on a clean exit, the first one last.
    """

    def __init__(
        self,
        path: PathLike,
        header: Mapping[str, Any],
        entries: Sequence[Record],
        tokenizer_json: bytes | None,
        sections: Mapping[str, bytes] | None = None,
        *,
        shard_bytes: int,
        sizes: Sequence[int],
    ) -> None:
        groups = _split(entries, sizes, shard_bytes)
        count = len(groups)
        if count > MOST_SHARDS:
            raise OutputError(f"{path}: {count} shards, expected at most {MOST_SHARDS}; allow larger ones")
        self.paths = (
            [shard_path(Path(path), no + 1, count) for no in range(count)] if count > 1 else [Path(path)]
        )
        self._stack = ExitStack()
        self._home: dict[str, CmfWriter] = {}
        self._writers = []
        for no, (file, group) in enumerate(zip(self.paths, groups, strict=True), 1):
            own = {**header} if count == 1 else _shard_header(header, no, count)
            first = (tokenizer_json, sections) if no == 1 else (None, None)
            self._writers.append(CmfWriter(file, own, group, *first))
            self._home.update(dict.fromkeys((name for name, _, _ in group), self._writers[-1]))

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            for writer in self._writers:
                opened.enter_context(writer)
            self._stack = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                identity = _set_id(self._writers) if len(self._writers) > 1 else None
                for writer in self._writers:
                    writer.seal(identity)
        except BaseException as e:
            self._stack.__exit__(type(e), e, e.__traceback__)
            raise
        self._stack.__exit__(kind, error, trace)

    def write(self, name: str, payload: Payload) -> None:
        """Append the next tensor; raises as `CmfWriter.write`."""
        if name not in self._home:
            raise OutputError(f"{self.paths[0]}: tensor {name} was written, expected one of the directory")
        self._home[name].write(name, payload)


def model_writer(
    path: PathLike,
    header: Mapping[str, Any],
    entries: Sequence[Record],
    tokenizer_json: bytes | None,
    sections: Mapping[str, bytes] | None = None,
    *,
    shard_bytes: int | None = None,
    sizes: Sequence[int] | None = None,
) -> CmfWriter | ShardWriter:
    """A `ShardWriter` where there is a limit, else a `CmfWriter`; without `sizes` those that `encode` stays within."""
    if shard_bytes is None:
        return CmfWriter(path, header, entries, tokenizer_json, sections)
    if sizes is None:
        sizes = [codecs.size_bound(dtype, shape) for _, dtype, shape in entries]
    return ShardWriter(path, header, entries, tokenizer_json, sections, shard_bytes=shard_bytes, sizes=sizes)


def _split(entries: Sequence[Record], sizes: Sequence[int], most: int) -> list[list[Record]]:
    groups: list[list[Record]] = [[]]
    used = 0
    for entry, size in zip(entries, sizes, strict=True):
        size = _aligned(size, TENSOR_ALIGN)
        if groups[-1] and used + size > most:
            groups.append([])
            used = 0
        groups[-1].append(entry)
        used += size
    return groups


def _shard_header(header: Mapping[str, Any], no: int, count: int) -> dict[str, Any]:
    own = {**header, "shard": {"no": no, "count": count, "id": NO_ID}}
    if no > 1:
        own["tokenizer_config"] = None
        for key in ("hf", "skills"):
            own.pop(key, None)
    return own


def _set_id(writers: Sequence[CmfWriter]) -> str:
    """16 hex digits of all payloads: shards of two runs do not mix unnoticed (hash64 is too weak for that)."""
    digest = hashlib.sha256()
    for writer in writers:
        assert writer.content is not None
        digest.update(writer.content.digest())
    return digest.hexdigest()[: len(NO_ID)]


def _parts(payload: Payload) -> Iterable[Bytes]:
    if isinstance(payload, bytes | bytearray | memoryview | np.ndarray):
        return (payload,)
    return payload


def _aligned(n: int, step: int) -> int:
    return -(-n // step) * step
