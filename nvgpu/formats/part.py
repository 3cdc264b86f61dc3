"""One CMF file on disk: a whole model, or a shard of one."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats import codecs
from nvgpu.formats.envelope import (
    ENVELOPE_BYTES,
    Envelope,
    Report,
    TensorEntry,
    check_overlaps,
    parse_directory,
    parse_envelope,
    refuse,
)
from nvgpu.formats.files import map_file, parse_json_object
from nvgpu.formats.hash64 import hash64

Array = np.ndarray[Any, Any]

MOST_SHARDS = 99_999  # five digits in a name
HASHED_SECTIONS = ("masks", "vocab", "index")
_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.cmf", re.DOTALL)


@dataclass(frozen=True)
class Shard:
    """The header's shard block: this is file `no` of `count`; files of one set share an `id` where they have one."""

    no: int
    count: int
    id: str | None = None


class Part:
    """A mapped file: every structure is checked on opening, payload and section hashes are not.

    `tensors` maps names to `TensorEntry` in directory order; `shard` is None for a file that is whole.
    """

    def __init__(self, path: Path, mapped: Any, envelope: Envelope, report: Report) -> None:
        self.path = path
        self.nbytes = len(mapped)
        self.envelope = envelope
        self._mapped = mapped
        self.header_bytes = self.section("header")
        self.directory_bytes = self.section("directory")
        self._check_hash("header", self.header_bytes, envelope.header_hash, report)
        self._check_hash("directory", self.directory_bytes, envelope.directory_hash, report)
        self.header = parse_json_object(self.header_bytes, f"{path}: header")
        self.shard = self._checked_header()
        data_bytes = envelope.sections["data"][1]
        self.tensors = parse_directory(self.directory_bytes, data_bytes, str(path), report)
        check_overlaps(envelope, self.tensors.values(), str(path), report)
        self._check_payloads(report)

    @classmethod
    def open(cls, path: Path, report: Report = refuse) -> Self:
        """Open and check a file; what does not keep the rest from being read goes to `report`.

        Raises:
            FormatError: not a regular file, or not a sound CMF file. InputError: nothing readable at `path`.
        """
        mapped = map_file(path)
        try:
            envelope = parse_envelope(bytes(mapped[:ENVELOPE_BYTES]), len(mapped), str(path))
            return cls(path, mapped, envelope, report)
        except BaseException:
            _close(mapped)
            raise

    def close(self) -> None:
        """Release the mapping, at the latest when the last view of it is gone."""
        _close(self._mapped)

    def section(self, name: str) -> bytes:
        """The bytes of a section, empty where there is none."""
        offset, length = self.envelope.sections[name]
        return bytes(self._mapped[offset : offset + length])

    def raw(self, entry: TensorEntry) -> Array:
        """A payload as a read-only u8 view of the mapping."""
        offset = self.envelope.sections["data"][0] + entry.offset
        return np.frombuffer(self._mapped, np.uint8, entry.nbytes, offset)

    def check_section(self, name: str) -> None:
        """Raise FormatError where masks, vocab or index do not match their hash in the header; none stored is fine."""
        data = self.section(name)
        stored = self.header.get("section_hashes")
        digest = stored.get(name) if isinstance(stored, dict) else None
        if data and digest is not None and digest != f"{hash64(data):016x}":
            raise FormatError(f"{self.path}: section {name} does not match its hash in the header")

    @property
    def unused_bytes(self) -> int:
        """Bytes that nothing refers to: padding, and what append-only growth left behind."""
        sections = sum(length for name, (_, length) in self.envelope.sections.items() if name != "data")
        return self.nbytes - ENVELOPE_BYTES - sections - sum(e.nbytes for e in self.tensors.values())

    def _check_hash(self, name: str, data: bytes, stored: int, report: Report) -> None:
        if stored and stored != hash64(data):
            report(FormatError(f"{self.path}: section {name} does not match its hash in the envelope"))

    def _checked_header(self) -> Shard | None:
        if not isinstance(self.header.get("arch"), dict):
            raise FormatError(f"{self.path}: header: arch is missing or not an object")
        provenance = self.header.get("provenance")
        if provenance is not None and not isinstance(provenance, dict):
            raise FormatError(
                f"{self.path}: header: provenance is {type(provenance).__name__}, expected an object"
            )
        return self._shard_block()

    def _shard_block(self) -> Shard | None:
        block = self.header.get("shard")
        if block is None:
            return None
        no, count = (block.get(key) if isinstance(block, dict) else None for key in ("no", "count"))
        if type(no) is not int or type(count) is not int or not 1 <= no <= count <= MOST_SHARDS:
            raise FormatError(
                f"{self.path}: header: shard is {block!r:.80}, expected no and count, 1 <= no <= count <= {MOST_SHARDS}"
            )
        known = block.get("id")
        return Shard(no, count, known if isinstance(known, str) else None) if count > 1 else None

    def _check_payloads(self, report: Report) -> None:
        """Size and tables of every payload, so that an open file holds no tensor of a wrong size."""
        for name, entry in self.tensors.items():
            try:
                codecs.check_payload(self.raw(entry), entry.dtype, entry.shape, f"{self.path}: tensor {name}")
            except FormatError as e:
                report(e)


def shard_path(base: Path, no: int, count: int) -> Path:
    """The name of a shard: `dir/model.cmf` gives `dir/model-00001-of-00005.cmf`."""
    return base.with_name(f"{base.name.removesuffix('.cmf')}-{no:05}-of-{count:05}.cmf")


def open_parts(path: Path, report: Report = refuse) -> list[Part]:
    """The file at `path`, or all files of the set it is a shard of, in order.

    Raises:
        FormatError: a missing, foreign or mixed-up shard, or as `Part.open`. InputError: nothing readable at `path`.
    """
    opened = Part.open(path, report)
    if opened.shard is None:
        return [opened]
    parts = [opened]
    try:
        for no, sibling in enumerate(_sibling_paths(opened), 1):
            if no != opened.shard.no:
                parts.append(Part.open(sibling, report))
                _check_sibling(parts[-1], no, opened)
    except BaseException:
        for part in parts:
            part.close()
        raise
    return sorted(parts, key=lambda part: part.shard.no if part.shard else 0)


def _sibling_paths(opened: Part) -> list[Path]:
    shard = opened.shard
    assert shard is not None
    match = _NAME.fullmatch(opened.path.name)
    if match is None or (int(match[2]), int(match[3])) != (shard.no, shard.count):
        raise FormatError(
            f"{opened.path}: its header says shard {shard.no} of {shard.count}, "
            f"expected a name that ends with -{shard.no:05}-of-{shard.count:05}.cmf"
        )
    paths = [shard_path(opened.path.with_name(match[1]), no, shard.count) for no in range(1, shard.count + 1)]
    missing = [p for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FormatError(
            f"{missing[0]}{more}: missing; {opened.path.name} is shard {shard.no} of {shard.count}"
        )
    return paths


def _check_sibling(part: Part, no: int, opened: Part) -> None:
    expected = opened.shard
    assert expected is not None
    found = part.shard
    if found is None or (found.no, found.count) != (no, expected.count):
        says = f"shard {found.no} of {found.count}" if found else "no shard"
        raise FormatError(f"{part.path}: its header says {says}, expected shard {no} of {expected.count}")
    same = all(part.header.get(key) == opened.header.get(key) for key in ("arch", "quant_type"))
    if not same or found.id != expected.id:
        raise FormatError(f"{part.path}: belongs to another model than {opened.path.name}")


def _close(mapped: Any) -> None:
    if not isinstance(mapped, bytes):
        with suppress(BufferError):  # views are alive: the last one to go takes the mapping with it
            mapped.close()
