"""Detached signatures: FILE.sig holds the 64 bytes of an Ed25519 signature over the 32 bytes of the file's SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.files import AtomicFile, one_line, read_file, reason, require_regular

SIGNATURE_BYTES = 64


def signature_path(path: Path) -> Path:
    """`model.cmf` is signed by `model.cmf.sig`."""
    return path.with_name(path.name + ".sig")


def sign(path: Path, key: Path) -> Path:
    """Sign a file with the private key of a PEM file; returns where the signature was written.

    Raises:
        FormatError: a key that is no unencrypted Ed25519 private key. InputError: an unreadable file, or no library.
        OutputError: the signature cannot be written.
    """
    private = _load_key(key, private=True)
    target = signature_path(path)
    with AtomicFile(target) as out:
        out.write(private.sign(_digest(path)))
    return target


def check_signature(path: Path, key: Path) -> None:
    """Check `path` against its signature with the public key of a PEM file.

    Raises:
        FormatError: a missing, malformed or wrong signature, or a key that is none. InputError: as `sign`.
    """
    public = _load_key(key, private=False)
    stored = signature_path(path)
    if not stored.exists():
        raise FormatError(f"{stored}: missing; {path.name} is not signed")
    signature = read_file(stored)
    if len(signature) != SIGNATURE_BYTES:
        raise FormatError(f"{stored}: {len(signature)} bytes, expected the {SIGNATURE_BYTES} of a signature")
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, _digest(path))
    except InvalidSignature as e:
        raise FormatError(f"{stored}: not a signature of {path.name} by the key in {key}") from e


def _load_key(path: Path, *, private: bool) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as e:
        raise InputError("signatures need the package cryptography: pip install 'nvgpu[sign]'") from e
    data = read_file(path)
    kind = "private" if private else "public"
    try:
        key: Any = (
            serialization.load_pem_private_key(data, password=None)
            if private
            else serialization.load_pem_public_key(data)
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise FormatError(f"{path}: not an unencrypted {kind} key in PEM: {one_line(e)}") from e
    if not isinstance(key, ed25519.Ed25519PrivateKey if private else ed25519.Ed25519PublicKey):
        raise FormatError(f"{path}: a {kind} key of another kind, expected Ed25519")
    return key


def _digest(path: Path) -> bytes:
    require_regular(path)
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").digest()
    except OSError as e:
        raise InputError(f"{path}: {reason(e)}") from e
