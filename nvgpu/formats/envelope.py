"""The binary parts of a CMF file: the 128-byte envelope with its section table, and the tensor directory."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from nvgpu.errors import FormatError
from nvgpu.formats import codecs
from nvgpu.formats.codecs import Dtype

MAGIC = b"CMF\x01"
VERSION = 2
ENVELOPE_BYTES = 128
DATA_ALIGN = 4096
TENSOR_ALIGN = 64
MAX_NDIM = 6
SECTIONS = ("header", "directory", "data", "masks", "vocab", "index")

TENSOR_DIRECTORY, BINARY_MASKS, TWO_FIELD_QUANT = 1 << 0, 1 << 1, 1 << 2
KNOWN_FEATURES = TENSOR_DIRECTORY | BINARY_MASKS | TWO_FIELD_QUANT

_MOST_WEIGHTS = 1 << 60  # more no array can have, not even one with an empty axis
Report = Callable[[FormatError], None]

_ENVELOPE = struct.Struct("<4sIII12QQQ")
_COUNTS = struct.Struct("<QQ")
_RECORD = struct.Struct("<IHBB6IQQQ")


@dataclass(frozen=True)
class Envelope:
    """`sections[name]` is (offset, length) in the file, (0, 0) where absent; a hash of 0 was not stored."""

    features: int
    sections: Mapping[str, tuple[int, int]]
    header_hash: int
    directory_hash: int

    def pack(self) -> bytes:
        """The 128 bytes."""
        numbers = [n for name in SECTIONS for n in self.sections[name]]
        return _ENVELOPE.pack(
            MAGIC, VERSION, 0, self.features, *numbers, self.header_hash, self.directory_hash
        )


@dataclass(frozen=True)
class TensorEntry:
    """A record of the directory: `offset` into the data section, `hash` is hash64 of the payload."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    hash: int


def refuse(error: FormatError) -> None:
    """The usual `Report`: the first thing that is wrong ends the reading."""
    raise error


def parse_envelope(data: bytes, file_bytes: int, where: str) -> Envelope:
    """Read the first 128 bytes of a file of `file_bytes`; raises FormatError for anything out of order."""
    if len(data) < ENVELOPE_BYTES:
        raise FormatError(
            f"{where}: {file_bytes} bytes, expected at least the {ENVELOPE_BYTES} of a CMF envelope"
        )
    magic, version, _, features, *numbers, header_hash, directory_hash = _ENVELOPE.unpack_from(data)
    if magic != MAGIC:
        raise FormatError(f"{where}: not a CMF file: it begins with {magic!r}, expected {MAGIC!r}")
    if version != VERSION:
        raise FormatError(f"{where}: CMF version {version}, expected {VERSION}")
    unknown = features & ~KNOWN_FEATURES
    if unknown:
        bits = ", ".join(str(i) for i in range(32) if unknown >> i & 1)
        raise FormatError(f"{where}: needs unknown feature bits {bits}")
    sections = {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(SECTIONS)}
    for name, (offset, length) in sections.items():
        if length and not ENVELOPE_BYTES <= offset <= offset + length <= file_bytes:
            raise FormatError(
                f"{where}: section {name} spans bytes {offset} to {offset + length}, "
                f"expected {ENVELOPE_BYTES} to {file_bytes}"
            )
    if sections["data"][1] and sections["data"][0] % DATA_ALIGN:
        raise FormatError(
            f"{where}: section data begins at {sections['data'][0]}, expected a multiple of {DATA_ALIGN}"
        )
    return Envelope(features, sections, header_hash, directory_hash)


def parse_directory(
    data: bytes, data_bytes: int, where: str, report: Report = refuse
) -> dict[str, TensorEntry]:
    """Read the directory section of a file whose data section has `data_bytes`; a bad record goes to `report`.

    Raises:
        FormatError: a count that cannot be; by default also any record, name, bound or size that is not as it must be.
    """
    if len(data) < _COUNTS.size:
        raise FormatError(
            f"{where}: tensor directory has {len(data)} bytes, expected at least {_COUNTS.size}"
        )
    count, pool = _COUNTS.unpack_from(data)
    records_end = _COUNTS.size + count * _RECORD.size
    if not records_end <= pool <= len(data):
        raise FormatError(
            f"{where}: tensor directory of {len(data)} bytes has {count} records, "
            f"which end at {records_end}, and its names at {pool}"
        )
    entries: dict[str, TensorEntry] = {}
    names = data[pool:]
    for i in range(count):
        try:
            entry = _parse_record(data, i, names, where)
            if entry.name in entries:
                raise FormatError(f"{where}: tensor {entry.name} stands twice in the directory")
            _check_entry(entry, data_bytes, where)
        except FormatError as e:
            report(e)
        else:
            entries[entry.name] = entry
    return entries


def _parse_record(data: bytes, i: int, names: bytes, where: str) -> TensorEntry:
    record = _RECORD.unpack_from(data, _COUNTS.size + i * _RECORD.size)
    name_offset, name_length, dtype_id, ndim = record[:4]
    offset, nbytes, digest = record[10:]
    if name_offset + name_length > len(names):
        raise FormatError(f"{where}: tensor {i}: its name lies outside the directory")
    try:
        name = names[name_offset : name_offset + name_length].decode("utf-8")
    except UnicodeDecodeError as e:
        raise FormatError(f"{where}: tensor {i}: its name is not UTF-8") from e
    if ndim > MAX_NDIM:
        raise FormatError(f"{where}: tensor {name}: {ndim} axes, expected at most {MAX_NDIM}")
    try:
        dtype = Dtype(dtype_id)
    except ValueError as e:
        raise FormatError(f"{where}: tensor {name}: unknown dtype {dtype_id}") from e
    return TensorEntry(name, dtype, tuple(record[4 : 4 + ndim]), offset, nbytes, digest)


def _check_entry(entry: TensorEntry, data_bytes: int, where: str) -> None:
    what = f"{where}: tensor {entry.name}"
    if entry.offset % TENSOR_ALIGN:
        raise FormatError(f"{what}: begins at {entry.offset}, expected a multiple of {TENSOR_ALIGN}")
    if entry.offset + entry.nbytes > data_bytes:
        raise FormatError(
            f"{what}: spans bytes {entry.offset} to {entry.offset + entry.nbytes} "
            f"of a data section of {data_bytes}"
        )
    if math.prod(n for n in entry.shape if n) >= _MOST_WEIGHTS:
        raise FormatError(f"{what}: shape {list(entry.shape)}, expected fewer than 2^60 weights")
    expected = codecs.nbytes(entry.dtype, entry.shape, what)
    if expected is not None and entry.nbytes != expected:
        raise FormatError(
            f"{what}: {entry.nbytes} bytes, expected {expected} for {entry.dtype.label} {list(entry.shape)}"
        )


def check_overlaps(
    envelope: Envelope, entries: Iterable[TensorEntry], where: str, report: Report = refuse
) -> None:
    """Report every two neighbours among tensors and sections that share bytes.

    A section inside the span of the data section is fine between tensors: append-only growth leaves it there.
    """
    data_offset = envelope.sections["data"][0]
    spans = [
        (offset, offset + length, f"section {name}")
        for name, (offset, length) in envelope.sections.items()
        if length and name != "data"
    ]
    spans += [
        (data_offset + e.offset, data_offset + e.offset + e.nbytes, f"tensor {e.name}")
        for e in entries
        if e.nbytes
    ]
    spans.sort()
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            report(FormatError(f"{where}: {first} and {second} overlap"))


def directory_bytes(names: Sequence[bytes]) -> int:
    """Size of the directory section of tensors with these UTF-8 names."""
    return _COUNTS.size + len(names) * _RECORD.size + sum(map(len, names))


def pack_directory(entries: Sequence[TensorEntry]) -> bytes:
    """The directory section; names stand in the pool in the same order."""
    names = [e.name.encode("utf-8") for e in entries]
    parts = [_COUNTS.pack(len(entries), _COUNTS.size + len(entries) * _RECORD.size)]
    offset = 0
    for entry, name in zip(entries, names, strict=True):
        shape = (*entry.shape, *[0] * (MAX_NDIM - len(entry.shape)))
        parts.append(
            _RECORD.pack(
                offset,
                len(name),
                entry.dtype,
                len(entry.shape),
                *shape,
                entry.offset,
                entry.nbytes,
                entry.hash,
            )
        )
        offset += len(name)
    return b"".join(parts + names)
