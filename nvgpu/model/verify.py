"""Whether a model file is sound: structure, hashes, finite values, architecture, tokenizer, masks, skills, signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from nvgpu.errors import FormatError
from nvgpu.formats import codecs
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.formats.hash64 import hash64
from nvgpu.formats.hf_config import ARCH_NAME
from nvgpu.formats.masks import read_masks
from nvgpu.formats.part import HASHED_SECTIONS
from nvgpu.formats.signature import check_signature, signature_path
from nvgpu.formats.skills import read_skills
from nvgpu.formats.tokenizer import Tokenizer
from nvgpu.model.geometry import Geometry
from nvgpu.progress import Progress

_LISTS_WEIGHTS = (Dtype.Q1S, Dtype.Q1T)  # exact weights whose places only a decoder checks


@dataclass
class Verification:
    """What was looked at, and what is wrong: (check, message) in the order found. `signature` says how that went,
    `skipped` what could not be checked."""

    files: list[Path]
    tensors: int = 0
    nbytes: int = 0
    signature: str = "none"
    skipped: list[str] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)

    def note(self, check: str) -> Callable[[FormatError], None]:
        """A Report that adds findings of a check."""
        return lambda error: self.add(check, error)

    def add(self, check: str, error: FormatError) -> None:
        """Add a finding, once."""
        if str(error) not in (message for _, message in self.findings):
            self.findings.append((check, str(error)))

    def attempt(self, check: str, call: Callable[[], object]) -> None:
        """Run a check; its FormatError is a finding."""
        try:
            call()
        except FormatError as e:
            self.add(check, e)


def verify(path: Path, public_key: Path | None = None, progress: Progress | None = None) -> Verification:
    """Check a file, or all shards of a set, in full; reads every byte once.

    Raises:
        InputError: nothing readable at `path`, or a public key that cannot be used.
    """
    result = Verification([path])
    try:
        model = CmfFile.open(path, result.note("structure"))
    except FormatError as e:
        result.add("structure", e)
        _check_signatures(result, public_key)
        return result
    with model:
        result.files, result.tensors, result.nbytes = model.paths, len(model.tensors), model.nbytes
        for part in model.parts:
            for section in HASHED_SECTIONS:
                result.attempt("hash", lambda p=part, s=section: p.check_section(s))  # type: ignore[misc]
        _check_tensors(result, model, progress)
        _check_model(result, model)
    _check_signatures(result, public_key)
    return result


def _check_tensors(result: Verification, model: CmfFile, progress: Progress | None) -> None:
    if progress is not None:
        progress.start("verify", len(model.tensors), "tensors")
    for name in model.tensors:
        if hash64(model.raw(name)) != model.tensors[name].hash:
            result.add("hash", FormatError(f"{model.path}: tensor {name} does not match its hash"))
        result.attempt("finite", lambda n=name: _check_values(model, n))  # type: ignore[misc]
        if progress is not None:
            progress.advance()


def _check_values(model: CmfFile, name: str) -> None:
    entry = model.tensors[name]
    codecs.check_payload(model.raw(name), entry.dtype, entry.shape, f"{model.path}: tensor {name}")
    model.check_finite(name)
    if entry.dtype in _LISTS_WEIGHTS:
        model.array(name)


def _check_model(result: Verification, model: CmfFile) -> None:
    family = model.arch.get("arch_name", ARCH_NAME)
    if family == ARCH_NAME:
        result.attempt("arch", lambda: Geometry.of(model, result.note("arch")))
    else:
        result.skipped.append(f"arch: {family!r:.80} is not {ARCH_NAME}")
    if model.parts[0].section("vocab"):
        result.attempt("tokenizer", lambda: _check_tokenizer(model))
    masks = lambda: read_masks(model.section("masks"), model.arch, str(model.path), result.note("masks"))  # noqa: E731
    result.attempt("masks", masks)
    read_skills(model.header, model.tensors, str(model.path), result.note("skills"))


def _check_tokenizer(model: CmfFile) -> None:
    vocabulary = Tokenizer.of(model).vocab_map()
    size = model.arch.get("vocab_size")
    token, largest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if isinstance(size, int) and largest >= size:
        raise FormatError(
            f"{model.path}: tokenizer: token {token!r} has id {largest}, arch.vocab_size is {size}"
        )


def _check_signatures(result: Verification, public_key: Path | None) -> None:
    if public_key is None:
        signed = any(signature_path(path).exists() for path in result.files)
        result.signature = "not checked, for want of --pubkey" if signed else "none"
        return
    before = len(result.findings)
    for path in result.files:
        result.attempt("signature", lambda p=path: check_signature(p, public_key))  # type: ignore[misc]
    result.signature = "valid" if len(result.findings) == before else "wrong or missing"
