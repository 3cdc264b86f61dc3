"""CMF version 2: one file with a model's weights, architecture, tokenizer and chat template (docs/cmf.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from nvgpu.errors import FormatError, OutputError
from nvgpu.formats import blr, codecs
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.envelope import (
    DATA_ALIGN,
    ENVELOPE_BYTES,
    MAX_NDIM,
    SECTIONS,
    TENSOR_ALIGN,
    TENSOR_DIRECTORY,
    TWO_FIELD_QUANT,
    Envelope,
    TensorEntry,
    check_overlaps,
    directory_bytes,
    pack_directory,
    parse_directory,
    parse_envelope,
)
from nvgpu.formats.files import AtomicFile, Bytes, PathLike, byte_view, map_file, parse_json_object
from nvgpu.formats.hash64 import Hash64, hash64

Array = np.ndarray[Any, Any]
Payload = Bytes | Iterable[Bytes]

__all__ = ["CmfFile", "CmfWriter", "TensorEntry"]


class CmfFile:
    """An open file, memory-mapped; every structure is checked on opening, payload hashes are not.

    `tensors` maps names to `TensorEntry` in directory order. Views from `raw` stay valid after `close`.
    """

    def __init__(self, path: Path, mapped: Any, envelope: Envelope) -> None:
        self.path = path
        self._mapped = mapped
        self._envelope = envelope
        self._header_bytes = self._section("header")
        self._directory_bytes = self._section("directory")
        self._check_hash("header", self._header_bytes, envelope.header_hash)
        self._check_hash("directory", self._directory_bytes, envelope.directory_hash)
        self.header = parse_json_object(self._header_bytes, f"{path}: header")
        self._check_header()
        data_bytes = envelope.sections["data"][1]
        self.tensors = parse_directory(self._directory_bytes, data_bytes, str(path))
        check_overlaps(envelope, self.tensors.values(), str(path))
        self._check_blr()

    @classmethod
    def open(cls, path: PathLike) -> Self:
        """Open and check a file.

        Raises:
            FormatError: not a regular file, or not a sound CMF file. InputError: nothing readable at `path`.
        """
        path = Path(path)
        mapped = map_file(path)
        try:
            envelope = parse_envelope(bytes(mapped[:ENVELOPE_BYTES]), len(mapped), str(path))
            return cls(path, mapped, envelope)
        except BaseException:
            _close(mapped)
            raise

    def close(self) -> None:
        """Release the mapping, at the latest when the last view of it is gone."""
        _close(self._mapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def arch(self) -> dict[str, Any]:
        """The header's architecture object."""
        arch: dict[str, Any] = self.header["arch"]
        return arch

    @property
    def tokenizer_json(self) -> bytes | None:
        """Bytes of the tokenizer (`tokenizer.json`), None where the file has none. Checks its hash."""
        data = self._section("vocab")
        if not data:
            return None
        stored = self.header.get("section_hashes")
        digest = stored.get("vocab") if isinstance(stored, dict) else None
        if digest is not None and digest != f"{hash64(data):016x}":
            raise FormatError(f"{self.path}: section vocab does not match its hash in the header")
        return data

    def entry(self, name: str) -> TensorEntry:
        """The record of a tensor; raises FormatError where the file has none of that name."""
        if name not in self.tensors:
            raise FormatError(f"{self.path}: tensor {name} is missing")
        return self.tensors[name]

    def raw(self, name: str) -> Array:
        """The payload as a read-only u8 view of the mapping."""
        entry = self.entry(name)
        offset = self._envelope.sections["data"][0] + entry.offset
        return np.frombuffer(self._mapped, np.uint8, entry.nbytes, offset)

    def array(self, name: str) -> Array:
        """The decoded tensor, a new float32 array of its shape."""
        entry = self.entry(name)
        return codecs.decode(self.raw(name), entry.dtype, entry.shape, f"{self.path}: tensor {name}")

    def check_finite(self, name: str) -> None:
        """Raise FormatError where a tensor holds NaN or an infinity."""
        entry = self.entry(name)
        if not codecs.is_finite(self.raw(name), entry.dtype, entry.shape):
            raise FormatError(f"{self.path}: tensor {name} holds non-finite values")

    def content_key(self) -> str:
        """SHA-256 (hex) of header JSON and directory, which holds every payload's hash64.

        It tells files apart that differ by work, not by malice: hash64 is blind to the order of 8-byte words.
        """
        return hashlib.sha256(self._header_bytes + self._directory_bytes).hexdigest()

    def _section(self, name: str) -> bytes:
        offset, length = self._envelope.sections[name]
        return bytes(self._mapped[offset : offset + length])

    def _check_hash(self, name: str, data: bytes, stored: int) -> None:
        if stored and stored != hash64(data):
            raise FormatError(f"{self.path}: section {name} does not match its hash in the envelope")

    def _check_header(self) -> None:
        if not isinstance(self.header.get("arch"), dict):
            raise FormatError(f"{self.path}: header: arch is missing or not an object")
        provenance = self.header.get("provenance")
        if provenance is not None and not isinstance(provenance, dict):
            raise FormatError(
                f"{self.path}: header: provenance is {type(provenance).__name__}, expected an object"
            )
        shard = self.header.get("shard")
        if isinstance(shard, dict) and shard.get("count") != 1:
            raise FormatError(
                f"{self.path}: shard {shard.get('no')} of {shard.get('count')}; "
                "sharded files cannot be read yet"
            )

    def _check_blr(self) -> None:
        """The header of every BLR payload, so that an open file holds no tensor of a wrong size."""
        for name, entry in self.tensors.items():
            if entry.dtype == Dtype.BLR:
                head = self.raw(name)[: blr.HEADER.size]
                blr.check_payload(head, entry.nbytes, f"{self.path}: tensor {name}", entry.shape)


def _close(mapped: Any) -> None:
    if not isinstance(mapped, bytes):
        with suppress(BufferError):  # views are alive: the last one to go takes the mapping with it
            mapped.close()


class CmfWriter:
    """Writes a file tensor by tensor, in the order of `entries`; use as a context manager.

    The file appears at `path` on a clean exit, complete; until then, and on any failure, what stood there is
    untouched. `header` is copied; its format, version and section_hashes are set here.
    """

    def __init__(
        self,
        path: PathLike,
        header: Mapping[str, Any],
        entries: Iterable[tuple[str, Dtype, tuple[int, ...]]],
        tokenizer_json: bytes | None,
    ) -> None:
        self.path = Path(path)
        self._out = AtomicFile(path)
        self._pending = [(name, Dtype(dtype), tuple(map(int, shape))) for name, dtype, shape in entries]
        self._vocab = tokenizer_json or b""
        self._header = self._header_json(header)
        self._done: list[TensorEntry] = []
        self._check_entries()
        names = [name.encode("utf-8") for name, _, _ in self._pending]
        self._directory_at = ENVELOPE_BYTES + len(self._header)
        self._data_at = _aligned(self._directory_at + directory_bytes(names), DATA_ALIGN)
        self._position = 0  # bytes of the data section written so far

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
        if kind is None:
            try:
                self._finish()
            except BaseException as e:
                self._out.__exit__(type(e), e, e.__traceback__)
                raise
        self._out.__exit__(kind, error, trace)

    def write(self, name: str, payload: Payload) -> None:
        """Append the next tensor; `payload` is bytes, an array, or an iterable of either.

        Raises:
            OutputError: not the next tensor of the directory, a payload of the wrong size, or a failed write.
            FormatError: a malformed BLR payload.
        """
        index = len(self._done)
        if index >= len(self._pending) or self._pending[index][0] != name:
            due = self._pending[index][0] if index < len(self._pending) else "no more tensors"
            raise OutputError(f"{self.path}: tensor {name} was written, expected {due}")
        _, dtype, shape = self._pending[index]
        padding = _aligned(self._position, TENSOR_ALIGN) - self._position
        self._out.write(bytes(padding))
        offset = self._position + padding
        digest, size, head = Hash64(), 0, b""
        for part in _parts(payload):
            view = byte_view(part)
            self._out.write(view)
            digest.update(view)
            size += len(view)
            head += bytes(view[: blr.HEADER.size - len(head)])
        self._check_size(name, dtype, shape, size, head)
        self._position = offset + size
        self._done.append(TensorEntry(name, dtype, shape, offset, size, digest.digest()))

    def _check_size(self, name: str, dtype: Dtype, shape: tuple[int, ...], size: int, head: bytes) -> None:
        where = f"{self.path}: tensor {name}"
        if dtype == Dtype.BLR:
            blr.check_payload(head, size, where, shape)
        expected = codecs.nbytes(dtype, shape, where)
        if expected is not None and size != expected:
            raise OutputError(f"{where}: payload of {size} bytes does not fit {dtype.label} {list(shape)}")

    def _header_json(self, header: Mapping[str, Any]) -> bytes:
        hashes = {"vocab": f"{hash64(self._vocab):016x}"} if self._vocab else {}
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

    def _finish(self) -> None:
        missing = self._pending[len(self._done) :]
        if missing:
            raise OutputError(f"{self.path}: tensor {missing[0][0]} was not written ({len(missing)} missing)")
        self._out.write(self._vocab)
        directory = pack_directory(self._done)
        sections = dict.fromkeys(SECTIONS, (0, 0))
        sections["header"] = (ENVELOPE_BYTES, len(self._header))
        sections["directory"] = (self._directory_at, len(directory))
        sections["data"] = (self._data_at, self._position)
        if self._vocab:
            sections["vocab"] = (self._data_at + self._position, len(self._vocab))
        two_field = any(e.dtype in codecs.TWO_FIELD for e in self._done)
        features = TENSOR_DIRECTORY | (TWO_FIELD_QUANT if two_field else 0)
        envelope = Envelope(features, sections, hash64(self._header), hash64(directory))
        self._out.write_at(0, envelope.pack() + self._header + directory)


def _parts(payload: Payload) -> Iterable[Bytes]:
    if isinstance(payload, bytes | bytearray | memoryview | np.ndarray):
        return (payload,)
    return payload


def _aligned(n: int, step: int) -> int:
    return -(-n // step) * step
