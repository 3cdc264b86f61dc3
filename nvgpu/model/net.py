"""A net on the device: the layers of a model file, with every linear behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nvgpu.errors import FormatError, InputError
from nvgpu.formats.blr import BlrPath as SignPath
from nvgpu.formats.blr import BlrTensor
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.codecs import Dtype
from nvgpu.gpu import Buffer, Device, Recorder, Staging
from nvgpu.layers.attention import Attention
from nvgpu.layers.block import Block
from nvgpu.layers.embedding import Embedding
from nvgpu.layers.gain import Gain
from nvgpu.layers.gdn import Gdn
from nvgpu.layers.head import Head
from nvgpu.layers.linear import (
    BlrLinear,
    BlrPath,
    DenseLinear,
    Linear,
    Tap,
    TappedLinear,
    transposed_words,
    words_from_bytes,
)
from nvgpu.layers.mlp import Mlp
from nvgpu.layers.signs import SIDES, PathSigns, Signs, SignSpec
from nvgpu.model import names
from nvgpu.model.geometry import Geometry
from nvgpu.model.headers import Headers, zeros
from nvgpu.model.params import Params, ParamSpec
from nvgpu.model.stream import Fetch, LayerStream

Array = np.ndarray[Any, Any]
_DTYPES = {"<f4": "f32", "<f2": "f16", "<u4": "u32"}
RANK_TILE = 32  # ranks are padded to it with l = 0
_DECODED_AT_ONCE = 1 << 22  # weights in f32
MATRIX_RANK_TILE = 128  # on matrix units, whose tiles are that wide


@dataclass(frozen=True)
class NetOptions:
    """How to load: `window` tokens a window; `trainable` gains and scales; `mixed` rounds frozen weights to f16,
    and the inputs of GEMMs too where matrix units run; `signs` trains the signs of binary low-rank paths too."""

    window: int
    trainable: bool = False
    mixed: bool = False
    signs: SignSpec | None = None

    def on_matrix_units(self, device: Device) -> bool:
        """Whether GEMMs run on them, with inputs rounded to f16."""
        return self.mixed and device.matrix_units


class Net:
    """Weights on `device`; layers are streamed where they exceed its budget.

    From `Headers` every value is 0 and takes no host memory: for a ledger, which only counts.
    `params` holds the gains and the h, l, g of every binary low-rank path. `tap` sees the inputs of the body's linears,
    those that share one once.
    """

    def __init__(
        self, device: Device, model: CmfFile | Headers, options: NetOptions, tap: Tap | None = None
    ) -> None:
        self.device = device
        self.geometry = Geometry.of(model)
        self.options = options
        kind = _Outline if isinstance(model, Headers) else _Loader
        loader = kind(device, model, self.geometry, options, tap)
        self.params = loader.params
        self.signs = loader.trained
        self.embedding = loader.embedding()
        self.blocks = [loader.block(i) for i in range(self.geometry.num_layers)]
        self.final_norm = loader.gain(names.FINAL_NORM)
        self.head = loader.head()
        self.stream = loader.stream
        self._owned = [*loader.owned, *self.params.buffers()]

    def block(self, rec: Recorder, index: int) -> Block:
        """Layer `index`, ready for what is recorded from here on until the next call."""
        if self.stream is not None:
            with rec.phase("stream weights", whole=True):
                self.stream.load(rec, index)
        return self.blocks[index]

    def free(self) -> None:
        """Release the device memory."""
        if self.stream is not None:
            self.stream.free()
        self.embedding.free()
        self.head.free()
        if self.signs is not None:
            self.signs.free()
        self.device.free(*self._owned)


def gain_names(geometry: Geometry) -> Iterator[str]:
    """Every trainable RMSNorm gain: final, two per layer, q and k norms."""
    yield names.FINAL_NORM
    for i, linear in enumerate(geometry.linear_layers):
        yield names.layer(i, names.INPUT_NORM)
        yield names.layer(i, names.POST_NORM)
        if not linear:
            yield names.layer(i, names.Q_NORM)
            yield names.layer(i, names.K_NORM)


def body_linear_names(geometry: Geometry) -> Iterator[str]:
    """Every linear of the body that a compressed model holds as BLR, in layer order."""
    for i, linear in enumerate(geometry.linear_layers):
        mixer = (
            [names.GDN[k] for k in ("in_qkv", "in_z", "out")] if linear else list(names.ATTENTION.values())
        )
        for tail in (*mixer, *names.MLP.values()):
            yield names.layer(i, tail)


def path_param(name: str, path: int, part: str) -> str:
    """Name of the scale vector `part` (h, l or g) of a path of the BLR tensor `name`."""
    return f"{name}#{path}.{part}"


def _named(linear: Callable[[str, str], Linear], kind: str, tails: Mapping[str, str]) -> dict[str, Any]:
    """The linears of one module by field name; their role is `kind.field`."""
    return {part: linear(tail, f"{kind}.{part}") for part, tail in tails.items()}


class _Loader:
    def __init__(
        self, device: Device, model: Any, geometry: Geometry, options: NetOptions, tap: Tap | None
    ) -> None:
        self.device = device
        self.tap = tap
        self.model = model
        self.geometry = geometry
        self.options = options
        self.owned: list[Buffer] = []
        self.looked_at: set[str] = set()
        self.stream = self.new_stream() if self._exceeds(device.budget) else None
        self.rank_tile = MATRIX_RANK_TILE if options.on_matrix_units(device) else RANK_TILE
        self.blr = {
            name: self.parsed(name)
            for name in body_linear_names(geometry)
            if model.tensors[name].dtype == Dtype.BLR
        }
        self.params = Params(device, list(self.specs()), trainable=options.trainable)
        self.trained = Signs(device, options.signs) if options.signs else None
        self.rope = self.keep(device.upload("rope", geometry.rope_table(options.window)))

    def new_stream(self) -> LayerStream:
        return LayerStream(self.device)

    def parsed(self, name: str) -> BlrTensor:
        return BlrTensor.parse(self.model.raw(name), f"{self.model.path}: tensor {name}")

    def _exceeds(self, budget: int) -> bool:
        """Whether the layers' matrices take more than half of the bytes of a budget (0: no bound)."""
        layers = (
            e.nbytes for name, e in self.model.tensors.items() if ".layers." in name and len(e.shape) > 1
        )
        return budget > 0 and 2 * sum(layers) > budget

    def matrix(self, index: int, part: str, fetch: Fetch) -> Buffer:
        """The buffer of a layer's frozen matrix: resident, or one that layers share and that `fetch` fills again."""
        values = fetch()
        dtype = _DTYPES[values.dtype.str]
        if self.stream is not None:
            return self.stream.add(index, part, values.shape, dtype, fetch)
        return self.keep(self.device.upload(names.layer(index, part), values, dtype))

    def resident(self, index: int, part: str, fetch: Fetch) -> Buffer:
        """The buffer of words that change on the device."""
        return self.keep(self.device.upload(names.layer(index, part), fetch(), "u32"))

    def keep(self, buffer: Buffer) -> Buffer:
        self.owned.append(buffer)
        return buffer

    def values(self, name: str) -> Array:
        """Decoded tensor; a non-finite weight would poison every row."""
        return self.finite(name, self.model.array(name))

    def finite(self, name: str, values: Array) -> Array:
        """`values`, looked at once."""
        self.require_finite(name, values)
        self.looked_at.add(name)
        return values

    def require_finite(self, name: str, values: Array) -> None:
        if name not in self.looked_at and not np.isfinite(values).all():
            raise FormatError(f"{self.model.path}: tensor {name} holds non-finite values")

    def specs(self) -> Iterator[ParamSpec]:
        for name in gain_names(self.geometry):
            values = self.values(name)
            yield ParamSpec(name, values, len(values), relative=False)
        for name, tensor in self.blr.items():
            padded = -(-tensor.rank // self.rank_tile) * self.rank_tile
            for i, path in enumerate(tensor.paths):
                for part, values, size in (
                    ("h", path.h, tensor.m),
                    ("l", path.l, padded),
                    ("g", path.g, tensor.n),
                ):
                    if not np.isfinite(values).all():
                        raise FormatError(
                            f"{self.model.path}: tensor {name}: path {i}: {part} holds non-finite values"
                        )
                    full = np.zeros(size, np.float32)
                    full[: len(values)] = values
                    yield ParamSpec(path_param(name, i, part), full, len(values), relative=True)

    def gain(self, name: str) -> Gain:
        return Gain(self.params.value(name), self.params.grad(name))

    def frozen(self, name: str) -> Buffer:
        return self.keep(self.device.upload(name, self.values(name)))

    def stored(self, name: str) -> Array:
        """A frozen matrix, f16 where that is asked for or loses nothing (its rows are read as vec4), else f32."""
        entry = self.model.tensors[name]
        if entry.dtype == Dtype.F16 and entry.shape[-1] % 4 == 0:
            return self.finite(name, self.model.raw(name).view("<f2").reshape(entry.shape))
        half = self.half(name, entry.shape) if entry.shape[-1] % 4 == 0 else None
        return self.values(name) if half is None else half

    def half(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """A matrix in f16, decoded some rows at a time; None where f16 would lose something that was not given up."""
        out = np.empty(shape, np.float16)
        step = max(1, _DECODED_AT_ONCE // shape[1])
        for begin in range(0, shape[0], step):
            values = self.model.rows(name, begin, min(begin + step, shape[0]))
            self.require_finite(name, values)
            part = out[begin : begin + step]
            with np.errstate(over="ignore"):
                part[:] = values
            if not self.options.mixed and not np.array_equal(part.astype(np.float32), values):
                return None
            if not np.isfinite(part).all():
                raise InputError(
                    f"{self.model.path}: tensor {name} exceeds the range of f16; use --precision f32"
                )
        self.looked_at.add(name)
        return out

    def linear(self, index: int, tail: str, role: str) -> Linear:
        name = names.layer(index, tail)
        linear: Linear
        if name in self.blr:
            linear = self.blr_linear(index, tail, role, self.blr[name])
        else:
            linear = DenseLinear(name, role, self.matrix(index, tail, lambda: self.stored(name)))
        seen = self.tap is not None and tail in names.BODY and names.lead(tail) == tail
        return TappedLinear(linear, self.tap) if seen and self.tap is not None else linear

    def blr_linear(self, index: int, tail: str, role: str, tensor: BlrTensor) -> Linear:
        name = names.layer(index, tail)
        padded = -(-tensor.rank // self.rank_tile) * self.rank_tile
        paths = []
        for i, path in enumerate(tensor.paths):
            fetch = self.signs(path, tensor, padded)
            # trained signs stay on the device: the file no longer holds them
            hold = self.resident if self.trained else self.matrix
            signs = {part: hold(index, f"{tail}#{i}.{part}", words) for part, words in fetch.items()}
            trained = self.path_signs(self.trained, name, i, role, tensor, signs) if self.trained else None
            value, grad = self.params.value, self.params.grad
            h, l, g = (path_param(name, i, part) for part in "hlg")
            paths.append(
                BlrPath(
                    **signs,
                    h=value(h),
                    l=value(l),
                    g=value(g),
                    dh=grad(h),
                    dl=grad(l),
                    dg=grad(g),
                    signs=trained,
                )
            )
        return BlrLinear(name, role, tensor.m, tensor.n, paths)

    def signs(self, path: SignPath, tensor: BlrTensor, rank: int) -> dict[str, Fetch]:
        """The words of U and V, and of their transposes where matrix units run: they read rows of signs twice as fast."""
        words: dict[str, Fetch] = {
            "u": lambda: words_from_bytes(path.u, tensor.m, rank),
            "v": lambda: words_from_bytes(path.v, rank, tensor.n),
        }
        if self.options.on_matrix_units(self.device):
            words["ut"] = lambda: transposed_words(words["u"](), rank)
            words["vt"] = lambda: transposed_words(words["v"](), tensor.n)
        return words

    def path_signs(
        self, owner: Signs, name: str, path: int, role: str, tensor: BlrTensor, words: Mapping[str, Buffer]
    ) -> PathSigns:
        """Training of a path's signs."""
        shapes = {"u": (tensor.m, tensor.rank), "v": (tensor.rank, tensor.n)}
        u, v = (
            owner.add(
                path_param(name, path, part), role, side, shapes[part], words[part], words.get(f"{part}t")
            )
            for part, side in zip("uv", SIDES, strict=True)
        )
        return PathSigns(owner, u, v)

    def block(self, index: int) -> Block:
        linear: Callable[[str, str], Linear] = lambda tail, role: self.linear(index, tail, role)  # noqa: E731
        mlp = Mlp(**_named(linear, "late/mlp", names.MLP))
        mixer = (
            self.gdn(index, linear) if self.geometry.linear_layers[index] else self.attention(index, linear)
        )
        norm1, norm2 = (self.gain(names.layer(index, tail)) for tail in (names.INPUT_NORM, names.POST_NORM))
        return Block(norm1, mixer, norm2, mlp, self.geometry.eps, self.geometry.gemma)

    def attention(self, index: int, linear: Callable[[str, str], Linear]) -> Attention:
        g = self.geometry
        return Attention(
            **_named(linear, "early/attn", names.ATTENTION),
            q_norm=self.gain(names.layer(index, names.Q_NORM)),
            k_norm=self.gain(names.layer(index, names.K_NORM)),
            rope=self.rope,
            heads=g.heads,
            kv_heads=g.kv_heads,
            head_dim=g.head_dim,
            eps=g.eps,
            gemma=g.gemma,
            window=self.options.window,
        )

    def gdn(self, index: int, linear: Callable[[str, str], Linear]) -> Gdn:
        d = self.geometry.gdn
        assert d is not None
        return Gdn(
            **_named(linear, "early/gdn", names.GDN),
            a_log=self.frozen(names.layer(index, names.GDN_A_LOG)),
            dt_bias=self.frozen(names.layer(index, names.GDN_DT_BIAS)),
            norm=self.frozen(names.layer(index, names.GDN_NORM)),
            conv=self.frozen(names.layer(index, names.GDN_CONV)),
            key_heads=d.key_heads,
            value_heads=d.value_heads,
            key_dim=d.key_dim,
            value_dim=d.value_dim,
            taps=d.taps,
            eps=self.geometry.eps,
            window=self.options.window,
        )

    def embedding(self) -> Embedding:
        return Embedding(self.device, self.stored(names.EMBED))

    def head(self) -> Head:
        values = self.stored(names.EMBED if self.geometry.tied else names.LM_HEAD)
        return Head(self.device, values, half=values.dtype == np.float16)


class _Outline(_Loader):
    """Loads `Headers`. A matrix that f16 may hold without loss (bf16 or quantised, unmixed) is taken to be f32."""

    def new_stream(self) -> LayerStream:
        return _StreamOutline(self.device)

    def parsed(self, name: str) -> BlrTensor:
        found: BlrTensor = self.model.blr(name)
        return found

    def stored(self, name: str) -> Array:
        entry = self.model.tensors[name]
        half = (self.options.mixed or entry.dtype == Dtype.F16) and entry.shape[-1] % 4 == 0
        return zeros("f2" if half else "f4", entry.shape)

    def signs(self, path: SignPath, tensor: BlrTensor, rank: int) -> dict[str, Fetch]:
        sizes = {"u": (tensor.m, rank), "v": (rank, tensor.n)}
        if self.options.on_matrix_units(self.device):
            sizes |= {"ut": (rank, tensor.m), "vt": (tensor.n, rank)}
        return {part: partial(zeros, "u4", (rows, -(-cols // 32))) for part, (rows, cols) in sizes.items()}

    def embedding(self) -> Embedding:
        return _EmbeddingOutline(self.device, self.stored(names.EMBED))


class _EmbeddingOutline(Embedding):
    def __init__(self, device: Device, table: Array) -> None:
        super().__init__(device, table[:1])
        self._table = table

    def _fill(self, staging: Staging, ids: Array) -> None:
        pass


class _StreamOutline(LayerStream):
    def _fill(self, staging: Staging, layer: int, places: Sequence[int]) -> None:
        pass
