"""Shader text: includes, the generated preamble, and positions mapped back to the source files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nvgpu.errors import ShaderError

_PACKAGED = Path(__file__).resolve().parent.parent / "shaders"
SHADER_ROOT = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2] / "shaders"
_INCLUDE = re.compile(r"^//!include (\S+)\s*$")
_POSITION = re.compile(r"wgsl:(\d+):(\d+)")

Scalar = bool | int | float


@dataclass(frozen=True)
class ShaderText:
    """Resolved WGSL and, for each of its lines, where it came from."""

    code: str
    origins: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hash of the resolved text, to show that a refactor changed no shader."""
        return hashlib.sha256(self.code.encode()).hexdigest()[:16]

    def locate(self, message: str) -> str:
        """`message` with every `wgsl:line:column` replaced by the source file's position."""

        def place(match: re.Match[str]) -> str:
            line = int(match.group(1))
            origin = self.origins[line - 1] if 0 < line <= len(self.origins) else "end of shader"
            return f"{origin}:{match.group(2)}"

        return _POSITION.sub(place, message)


def const_lines(consts: Mapping[str, Scalar], aliases: Mapping[str, str]) -> list[str]:
    """`alias` and `const` declarations, sorted by name: bool, u32 for int, f32 for float."""
    lines = [f"alias {name} = {target};" for name, target in sorted(aliases.items())]
    for name, value in sorted(consts.items()):
        if isinstance(value, bool):
            lines.append(f"const {name}: bool = {str(value).lower()};")
        elif isinstance(value, int):
            lines.append(f"const {name}: u32 = {value}u;")
        else:
            lines.append(f"const {name}: f32 = {value!r}f;")
    return lines


def params_struct(fields: Mapping[str, str]) -> list[str]:
    """The uniform struct `Params`, one field a line, in the order in which the host packs them."""
    return ["struct Params {", *(f"    {name}: {kind}," for name, kind in fields.items()), "}"]


@cache
def _read(path: str) -> tuple[str, ...]:
    try:
        return tuple((SHADER_ROOT / path).read_text(encoding="utf-8").splitlines())
    except OSError as e:
        raise ShaderError(f"shader {path}: {e.strerror}") from e


def resolve(
    path: str, preamble: list[str], enables: tuple[str, ...] = (), libs: tuple[str, ...] = ()
) -> ShaderText:
    """The shader file `path` (relative to the shader folder), its preamble and `libs` in front, its includes expanded once."""
    lines: list[tuple[str, str]] = [(f"enable {name};", "preamble") for name in enables]
    lines += [(text, "preamble") for text in preamble]
    seen: set[str] = set()

    def expand(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for number, text in enumerate(_read(name), 1):
            match = _INCLUDE.match(text)
            if match:
                expand(match.group(1))
            else:
                lines.append((text, f"{name}:{number}"))

    for name in (*libs, path):
        expand(name)
    resolved = ShaderText("\n".join(t for t, _ in lines) + "\n", tuple(o for _, o in lines))
    if folder := os.environ.get("NVGPU_DUMP_WGSL"):
        target = Path(folder) / f"{path.replace('/', '.')}.{resolved.digest}.wgsl"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(resolved.code, encoding="utf-8")
        except OSError as e:
            raise ShaderError(f"NVGPU_DUMP_WGSL: {target} cannot be written: {e.strerror}") from e
    return resolved
