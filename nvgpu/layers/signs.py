"""Signs that train: each has a latent, which moves in the reverse sweep once the path's input gradient has been formed.

Gradients are those of the stored activation gradients, which carry the executor's scale; the step takes it out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvgpu.errors import GpuError
from nvgpu.gpu import Buffer, Device, Recorder
from nvgpu.layers.workspace import Workspace
from nvgpu.ops import elementwise, linear
from nvgpu.ops import signs as ops
from nvgpu.ref.signs import Hyper, matrix_key

Array = np.ndarray[Any, Any]
SIDES = ("U", "V")
_SLOTS = 32  # counters of flips: a role and a side each


@dataclass(frozen=True)
class SignSpec:
    """What the state of trained signs depends on: optimiser, width τ of the latents' start, and seed."""

    optimiser: str
    tau: float
    seed: int


@dataclass(frozen=True, eq=False)
class SignMatrix:
    """A matrix of R x C trained signs and its state; padding of the rank has bits but no place here."""

    name: str
    slot: int
    key: int
    rows: int
    cols: int
    bits: Buffer  # u32 [B, W]  B >= R
    turned: Buffer | None  # u32 [.., cdiv(B, 32)]  the transposed bits, where products read them
    start: Buffer  # u32 [B, W]  the bits as loaded
    lat: Buffer  # f16 [R, 32 W]
    ema: Buffer  # f32 [R + C + 3]
    mom: Buffer | None  # f16 [R, 32 W]
    second: Buffer | None  # f32 [R, 32 W]

    @property
    def live(self) -> int:
        return self.rows * self.cols

    def state(self) -> dict[str, Buffer]:
        """What a step changes, by kind."""
        kinds = {"bits": self.bits, "lat": self.lat, "ema": self.ema, "mom": self.mom, "second": self.second}
        return {kind: buffer for kind, buffer in kinds.items() if buffer is not None}


@dataclass(frozen=True, eq=False)
class PathSigns:
    """The two sign matrices of a binary low-rank path."""

    owner: Signs
    u: SignMatrix  # [m, r]
    v: SignMatrix  # [r, n]

    def learn(
        self,
        rec: Recorder,
        ws: Workspace,
        scales: tuple[Buffer, Buffer, Buffer],
        x: Buffer,
        dy: Buffer,
        ds: Buffer,
        t: Buffer,
    ) -> None:
        """Move the signs: dU = h l Σ dy t, dV = l g Σ ds x over the rows; `scales` are h, l, g."""
        h, l, g = scales
        with rec.phase("signs", whole=True):
            self.owner.learn(rec, ws, self.u, dy, t, h, l)
            self.owner.learn(rec, ws, self.v, ds, x, l, g)


class Signs:
    """All trained signs of a net. Between `begin` and `finish` its backward moves them; outside it leaves them alone."""

    def __init__(self, device: Device, spec: SignSpec) -> None:
        self.device = device
        self.spec = spec
        self.matrices: list[SignMatrix] = []
        self.slots: list[str] = []
        self.hyper = device.buffer("sign.hyper", (ops.HYPER,))
        self.tally = device.buffer("sign.tally", (ops.FLIPS + _SLOTS,), "u32")
        self._mode = "off"
        self._grads: dict[str, Buffer] = {}  # of deferred steps
        self._seen: dict[str, SignMatrix] = {}  # in the order of the sweep

    @property
    def live(self) -> int:
        """Number of trained signs."""
        return sum(m.live for m in self.matrices)

    @property
    def nbytes(self) -> int:
        """Device memory of the state."""
        return sum(b.nbytes for m in self.matrices for b in (*m.state().values(), m.start))

    def add(
        self, name: str, role: str, side: str, shape: tuple[int, int], bits: Buffer, turned: Buffer | None
    ) -> SignMatrix:
        """Train the signs `shape` = (R, C) of `bits`; `role` and `side` say where they are counted."""
        rows, cols = shape
        slot = f"{role.rpartition('/')[2]}.{side}"
        if slot not in self.slots:
            self.slots.append(slot)
        if len(self.slots) > _SLOTS:
            raise GpuError(f"sign training: more than {_SLOTS} roles and sides, at {slot}")
        key = matrix_key(self.spec.seed, len(self.matrices))
        places = (rows, 32 * bits.shape[1])
        made = {
            kind: self.device.buffer(f"{name}.{kind}", size, dtype)
            for kind, size, dtype, wanted in (
                ("start", bits.shape, "u32", True),
                ("lat", places, "f16", True),
                ("ema", (rows + cols + 3,), "f32", True),
                ("mom", places, "f16", self.spec.optimiser != "fact"),
                ("second", places, "f32", self.spec.optimiser == "adam"),
            )
            if wanted
        }
        state = {kind: made.get(kind) for kind in ("mom", "second")}
        matrix = SignMatrix(
            name,
            self.slots.index(slot),
            key,
            rows,
            cols,
            bits,
            turned,
            made["start"],
            made["lat"],
            made["ema"],
            **state,
        )
        with Recorder(self.device) as rec:
            rec.copy(bits, matrix.start)
            ops.sign_latents(rec, bits=bits, lat=matrix.lat, C=cols, R=rows, key=key, span=2 * self.spec.tau)
        self.matrices.append(matrix)
        return matrix

    # ── a step ──

    def begin(self, rec: Recorder, hyper: Hyper, *, deferred: bool = False) -> None:
        """From here on a backward moves the signs, or only keeps their gradients until `finish` if `deferred`."""
        with rec.phase("signs", whole=True):
            rec.flush()  # queued writes precede the next submission
            self.hyper.write(hyper.vector())
            self.tally.write(np.zeros(self.tally.shape, np.uint32))
        self._mode = "deferred" if deferred else "fused"
        self._seen.clear()

    def guard(self, rec: Recorder, loss: Buffer) -> None:
        """Nothing moves where a row's loss is not finite."""
        if self._mode != "off":
            with rec.phase("signs", whole=True):
                ops.sign_guard(rec, loss=loss, tally=self.tally)

    def learn(
        self,
        rec: Recorder,
        ws: Workspace,
        matrix: SignMatrix,
        x: Buffer,
        w: Buffer,
        cin: Buffer,
        cout: Buffer,
    ) -> None:
        """Form G = diag(cin) xᵀ w diag(cout), x `[N, R']`, w `[N, C']`, and step along it."""
        if self._mode == "off":
            return
        shape = (cin.size, cout.size)
        given: dict[str, Any] = {"cin": cin, "cout": cout}
        x, w = x.reshaped(x.shape[0], shape[0]), w.reshaped(w.shape[0], shape[1])
        held = self._held(matrix, shape) if self._mode == "deferred" else None
        if held is not None and matrix.name not in self._seen:
            self._seen[matrix.name] = matrix
            ops.sign_grad(rec, x=x, w=w, y=held, **given)
            return
        grad = ws.buf("sign.grad", shape)
        ops.sign_grad(rec, x=x, w=w, y=grad, **given)
        if held is not None:
            elementwise.accumulate(rec, x=grad, y=held)
        else:
            self._step(rec, ws, matrix, grad)

    def _held(self, matrix: SignMatrix, shape: tuple[int, int]) -> Buffer:
        if matrix.name not in self._grads:
            self._grads[matrix.name] = self.device.buffer(f"{matrix.name}.grad", shape)
        return self._grads[matrix.name]

    def gradient(self, matrix: SignMatrix) -> Array:
        """G `[R, C]` of a deferred step that `finish` has not ended yet, times the gradients' scale."""
        return self._grads[matrix.name].read()[: matrix.rows, : matrix.cols]

    def _step(self, rec: Recorder, ws: Workspace, m: SignMatrix, grad: Buffer) -> None:
        width, words = grad.shape[1], m.bits.shape[1]
        q = grad.view((m.rows, width))  # rows behind it pad the rank
        rows = ws.buf("sign.rows", (m.rows,))
        partial = ws.buf("sign.partial", (ops.column_chunks(m.rows), width))
        told: dict[str, Any] = {"tally": self.tally, "hyper": self.hyper}
        # 1. gradients to slopes, means of their squares
        ops.sign_slope(rec, g=q, lat=m.lat, rows=rows, **told, C=m.cols, W=words)
        linear.colsum_mul_partial(rec, a=q, b=q, partial=partial)
        ops.sign_moments(rec, rows=rows, partial=partial, ema=m.ema, **told, C=m.cols)
        # 2. latents and bits
        more: dict[str, Any] = {
            kind: b for kind, b in (("mom", m.mom), ("second", m.second)) if b is not None
        }
        step = ops.STEPS[self.spec.optimiser]
        step(rec, q=q, lat=m.lat, bits=m.bits, ema=m.ema, **more, **told, C=m.cols, key=m.key, slot=m.slot)
        # 3. the transposed bits
        self._turn(rec, m)

    def _turn(self, rec: Recorder, m: SignMatrix) -> None:
        if m.turned is not None:
            ops.sign_turn(rec, bits=m.bits, turned=m.turned)

    def finish(self, rec: Recorder, ws: Workspace) -> Array:
        """End the step, deferred updates first; the counts, u32 by the places that `nvgpu.ops.signs` names."""
        with rec.phase("signs", whole=True):
            if self._mode == "deferred":
                for m in self._seen.values():
                    self._step(rec, ws, m, self._grads[m.name])
            self._mode = "off"
            rec.flush()
            return self.tally.read()

    # ── between steps ──

    def flipped(self) -> dict[str, tuple[int, int]]:
        """(signs that differ from the bits as loaded, all signs) by role and side."""
        counts = self.device.buffer("sign.flipped", (len(self.slots),), "u32")
        with Recorder(self.device) as rec:
            for m in self.matrices:
                ops.sign_flips(
                    rec,
                    bits=m.bits.reshaped(m.bits.size),
                    start=m.start.reshaped(m.bits.size),
                    counts=counts,
                    slot=m.slot,
                )
        found = counts.read()
        self.device.free(counts)
        live = np.zeros(len(self.slots), np.int64)
        for m in self.matrices:
            live[m.slot] += m.live
        return {name: (int(found[i]), int(live[i])) for i, name in enumerate(self.slots)}

    def bits(self, kind: str = "bits") -> Array:
        """All words of `bits`, or of `start`, one matrix after the other."""
        return np.concatenate([getattr(m, kind).read().reshape(-1) for m in self.matrices])

    def write_bits(self, words: Array) -> None:
        """The inverse of `bits`. Raises ValueError where they are of other matrices."""
        with Recorder(self.device) as rec:
            for m, part in zip(self.matrices, self._parts(words, "bits"), strict=True):
                m.bits.write(part)
                self._turn(rec, m)

    def payloads(self, words: Array) -> dict[str, Array]:
        """`bits` by matrix as a BLR payload holds them, u8 `[R, C / 8]`. Raises ValueError where they are of other matrices."""
        return {
            m.name: part.reshape(m.bits.shape).view(np.uint8)[: m.rows, : m.cols // 8]
            for m, part in zip(self.matrices, self._parts(words, "bits"), strict=True)
        }

    def state(self) -> dict[str, Array]:
        """Everything that steps change, by kind: one matrix after the other."""
        return {
            kind: np.concatenate([m.state()[kind].read().reshape(-1) for m in self.matrices])
            for kind in self.matrices[0].state()
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`. Raises ValueError where it is of other matrices."""
        self.write_bits(state["bits"])
        for kind in self.matrices[0].state():
            if kind != "bits":
                for m, part in zip(self.matrices, self._parts(state[kind], kind), strict=True):
                    m.state()[kind].write(part)

    def _parts(self, whole: Array, kind: str) -> Sequence[Array]:
        sizes = [m.state()[kind].size for m in self.matrices]
        expected = {"f32": np.float32, "f16": np.float16, "u32": np.uint32}[
            self.matrices[0].state()[kind].dtype
        ]
        if whole.shape != (sum(sizes),) or whole.dtype != expected:
            raise ValueError(f"{kind} of the signs is {whole.dtype} {list(whole.shape)}")
        return np.split(whole, np.cumsum(sizes)[:-1])

    def free(self) -> None:
        """Release what is not the net's: everything but the bits."""
        self.device.free(self.hyper, self.tally, *self._grads.values())
        for m in self.matrices:
            kept = [b for kind, b in m.state().items() if kind != "bits"]
            self.device.free(m.start, *kept)
