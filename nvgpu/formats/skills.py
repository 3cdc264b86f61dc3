"""Skills of a CMF file: records in the header, and tensors `skill.ID.NAME` that stand in for NAME. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvgpu.errors import FormatError
from nvgpu.formats.envelope import Report, TensorEntry, refuse

PREFIX = "skill."


@dataclass(frozen=True)
class Skill:
    """A registered skill; `tensors` are the names of what it replaces, `nbytes` the bytes of its own tensors."""

    id: str
    name: str | None
    tensors: tuple[str, ...]
    nbytes: int
    quality: Mapping[str, Any] | None


def read_skills(
    header: Mapping[str, Any], tensors: Mapping[str, TensorEntry], where: str, report: Report = refuse
) -> list[Skill]:
    """The registry against the directory; what is wrong goes to `report`.

    Raises:
        FormatError: by default a malformed record, an id that stands twice, a tensor `skill.…` of no registered skill,
            or one that replaces nothing or has another shape than what it replaces.
    """
    records = header.get("skills")
    if records is not None and not isinstance(records, list):
        report(FormatError(f"{where}: header: skills is {type(records).__name__}, expected a list"))
        records = []
    known: dict[str, Any] = {}
    for i, record in enumerate(records or []):
        problem = _problem(record, known)
        if problem:
            report(FormatError(f"{where}: header: skill {i} {problem}"))
        else:
            known[record["id"]] = record
    owned = _owned(known, tensors, where, report)
    return [
        Skill(
            key,
            record.get("name") if isinstance(record.get("name"), str) else None,
            tuple(owned[key]),
            sum(tensors[f"{PREFIX}{key}.{name}"].nbytes for name in owned[key]),
            record.get("quality") if isinstance(record.get("quality"), dict) else None,
        )
        for key, record in known.items()
    ]


def _problem(record: Any, known: Mapping[str, Any]) -> str | None:
    key = record.get("id") if isinstance(record, dict) else None
    if not isinstance(key, str) or not key:
        return "is not an object with an id"
    if key in known:
        return f"has the id {key!r:.80} of another"
    return "belongs to a base that is not in the file" if record.get("base_dir_hash") is not None else None


def _owned(
    known: Mapping[str, Any], tensors: Mapping[str, TensorEntry], where: str, report: Report
) -> dict[str, list[str]]:
    """Names that each skill replaces; of ids that are prefixes of each other the longest is meant."""
    owned: dict[str, list[str]] = {key: [] for key in known}
    for name, entry in tensors.items():
        if not name.startswith(PREFIX):
            continue
        rest = name.removeprefix(PREFIX)
        key = max((k for k in known if rest.startswith(f"{k}.")), key=len, default=None)
        base = tensors.get(rest[len(key) + 1 :]) if key is not None else None
        if key is None:
            report(FormatError(f"{where}: tensor {name} belongs to no skill of the header"))
        elif base is None:
            report(FormatError(f"{where}: tensor {name} replaces a tensor that the file lacks"))
        elif base.shape != entry.shape:
            report(
                FormatError(
                    f"{where}: tensor {name} has shape {list(entry.shape)}, what it replaces {list(base.shape)}"
                )
            )
        else:
            owned[key].append(base.name)
    return owned
