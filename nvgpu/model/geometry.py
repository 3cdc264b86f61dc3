"""What a model is made of: from the CMF header's `arch`, with every width taken from the tensors' shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nvgpu.errors import FormatError
from nvgpu.formats.envelope import Report, refuse
from nvgpu.model import names

_MAX_HEAD_DIM = 1 << 16


class Source(Protocol):
    """What the geometry needs of a model file."""

    @property
    def path(self) -> Any: ...
    @property
    def arch(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class GdnDims:
    """GatedDeltaNet: key heads, value heads, their widths, and the taps of the convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int


@dataclass(frozen=True)
class Geometry:
    """Sizes of a net; `linear_layers[i]` says that layer i is a GatedDeltaNet layer."""

    hidden_size: int
    vocab_size: int
    linear_layers: tuple[bool, ...]
    heads: int
    kv_heads: int
    head_dim: int
    inv_freq: tuple[float, ...]
    eps: float
    gemma: bool
    tied: bool
    gdn: GdnDims | None

    @property
    def num_layers(self) -> int:
        return len(self.linear_layers)

    @classmethod
    def of(cls, source: Source, report: Report = refuse) -> Geometry:
        """Read and check the geometry of a model file; tensors that contradict it go to `report`.

        Raises:
            FormatError: a missing or odd `arch` entry; by default also a missing tensor, or a shape that contradicts
                another.
        """
        return _Reader(source, report).geometry()

    def rope_table(self, window: int) -> np.ndarray[Any, Any]:
        """`[window, half, 2]` cosines and sines in float64."""
        angle = np.outer(np.arange(window, dtype=np.float64), np.array(self.inv_freq))
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


class _Reader:
    def __init__(self, source: Source, report: Report) -> None:
        self.source = source
        self.report = report
        self.where = str(source.path)

    def key(self, name: str, kind: type[Any]) -> Any:
        value = self.source.arch.get(name)
        if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
            value = float(value)
        if not isinstance(value, kind) or (
            kind is int and (isinstance(value, bool) or not 0 < value < 1 << 32)
        ):
            raise FormatError(f"{self.where}: arch.{name} is {value!r:.80}, expected a {kind.__name__}")
        if kind is float and not math.isfinite(value):
            raise FormatError(f"{self.where}: arch.{name} is {value}, expected a finite number")
        return value

    def shape(self, name: str, ndim: int) -> tuple[int, ...]:
        entry = self.source.tensors.get(name)
        if entry is None:
            raise FormatError(f"{self.where}: tensor {name} is missing")
        shape = tuple(int(n) for n in entry.shape)
        if len(shape) != ndim or min(shape) < 1:
            raise FormatError(f"{self.where}: tensor {name} has shape {list(shape)}, expected {ndim} axes")
        return shape

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        try:
            found = self.shape(name, len(shape))
        except FormatError as e:
            self.report(e)
            return
        if found != shape:
            self.report(
                FormatError(f"{self.where}: tensor {name} has shape {list(found)}, expected {list(shape)}")
            )

    def geometry(self) -> Geometry:
        vocab_size, hidden_size = self.shape(names.EMBED, 2)
        kinds = self.key("layer_types", list)
        known = {"LinearAttention": True, "FullAttention": False}
        for kind in kinds:
            if not isinstance(kind, str) or kind not in known:
                raise FormatError(
                    f"{self.where}: arch.layer_types holds {kind!r:.80}, expected one of {', '.join(known)}"
                )
        linear = tuple(known[kind] for kind in kinds)
        if len(linear) != self.key("num_layers", int):
            raise FormatError(
                f"{self.where}: arch.layer_types has {len(linear)} entries, arch.num_layers is {self.key('num_layers', int)}"
            )
        style = self.key("norm_style", str)
        if style not in ("qwen", "gemma"):
            raise FormatError(f"{self.where}: arch.norm_style is {style!r}, expected 'qwen' or 'gemma'")
        heads, kv_heads, head_dim = (
            self.key(k, int) for k in ("num_attention_heads", "num_kv_heads", "head_dim")
        )
        if head_dim > _MAX_HEAD_DIM:
            raise FormatError(f"{self.where}: arch.head_dim is {head_dim}, expected at most {_MAX_HEAD_DIM}")
        if heads % kv_heads:
            raise FormatError(
                f"{self.where}: arch.num_attention_heads {heads} is not a multiple of num_kv_heads {kv_heads}"
            )
        geometry = Geometry(
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            linear_layers=linear,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inv_freq=self.inv_freq(head_dim),
            eps=self.key("rms_norm_eps", float),
            gemma=style == "gemma",
            tied=names.LM_HEAD not in self.source.tensors,
            gdn=self.gdn(linear.index(True)) if any(linear) else None,
        )
        self.check(geometry)
        return geometry

    def inv_freq(self, head_dim: int) -> tuple[float, ...]:
        theta = self.key("rope_theta", float)
        factor = (
            self.key("partial_rotary_factor", float) if "partial_rotary_factor" in self.source.arch else 1.0
        )
        if not theta > 0 or not 0 < factor <= 1:
            raise FormatError(
                f"{self.where}: arch.rope_theta {theta}, partial_rotary_factor {factor}: expected > 0 and in (0, 1]"
            )
        rotary = int(head_dim * factor)
        if rotary < 2 or rotary % 2:
            raise FormatError(
                f"{self.where}: {rotary} rotary dimensions of {head_dim}, expected an even number >= 2"
            )
        return tuple(1.0 / theta ** (2.0 * i / rotary) for i in range(rotary // 2))

    def gdn(self, index: int) -> GdnDims:
        """Widths from the first GatedDeltaNet layer's tensors; the others are checked against them."""
        key_heads = self.key("linear_num_key_heads", int)
        (value_heads,) = self.shape(names.layer(index, names.GDN_A_LOG), 1)
        (value_dim,) = self.shape(names.layer(index, names.GDN_NORM), 1)
        rows, _ = self.shape(names.layer(index, names.GDN["in_qkv"]), 2)
        taps = self.shape(names.layer(index, names.GDN_CONV), 3)[-1]
        key_rows = rows - value_heads * value_dim
        if key_rows <= 0 or key_rows % (2 * key_heads) or value_heads % key_heads:
            raise FormatError(
                f"{self.where}: tensor {names.layer(index, names.GDN['in_qkv'])} has {rows} rows, which do not fit "
                f"{key_heads} key heads and {value_heads} value heads of {value_dim}"
            )
        return GdnDims(key_heads, value_heads, key_rows // (2 * key_heads), value_dim, taps)

    def check(self, g: Geometry) -> None:
        hidden = g.hidden_size
        self.expect(names.FINAL_NORM, (hidden,))
        if not g.tied:
            self.expect(names.LM_HEAD, (g.vocab_size, hidden))
        for i, linear in enumerate(g.linear_layers):
            self.expect(names.layer(i, names.INPUT_NORM), (hidden,))
            self.expect(names.layer(i, names.POST_NORM), (hidden,))
            self.check_mlp(i, hidden)
            if linear:
                self.check_gdn(i, g)
            else:
                self.check_attention(i, g)

    def check_mlp(self, i: int, hidden: int) -> None:
        """The width of a layer is the one of its gate."""
        try:
            width, _ = self.shape(names.layer(i, names.MLP["gate"]), 2)
        except FormatError as e:
            self.report(e)
            return
        self.expect(names.layer(i, names.MLP["gate"]), (width, hidden))
        self.expect(names.layer(i, names.MLP["up"]), (width, hidden))
        self.expect(names.layer(i, names.MLP["down"]), (hidden, width))

    def check_gdn(self, i: int, g: Geometry) -> None:
        assert g.gdn is not None
        d, hidden = g.gdn, g.hidden_size
        values = d.value_heads * d.value_dim
        channels = 2 * d.key_heads * d.key_dim + values
        for tail, shape in (
            (names.GDN["in_qkv"], (channels, hidden)),
            (names.GDN["in_z"], (values, hidden)),
            (names.GDN["in_a"], (d.value_heads, hidden)),
            (names.GDN["in_b"], (d.value_heads, hidden)),
            (names.GDN["out"], (hidden, values)),
            (names.GDN_A_LOG, (d.value_heads,)),
            (names.GDN_DT_BIAS, (d.value_heads,)),
            (names.GDN_NORM, (d.value_dim,)),
            (names.GDN_CONV, (channels, 1, d.taps)),
        ):
            self.expect(names.layer(i, tail), shape)

    def check_attention(self, i: int, g: Geometry) -> None:
        q, kv, hidden = g.heads * g.head_dim, g.kv_heads * g.head_dim, g.hidden_size
        for tail, shape in (
            (names.ATTENTION["q"], (2 * q, hidden)),
            (names.ATTENTION["k"], (kv, hidden)),
            (names.ATTENTION["v"], (kv, hidden)),
            (names.ATTENTION["o"], (hidden, q)),
            (names.Q_NORM, (g.head_dim,)),
            (names.K_NORM, (g.head_dim,)),
        ):
            self.expect(names.layer(i, tail), shape)
