"""Sizes that are no multiple of anything, and rope parameters that contradict the top level, against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvgpu.encode.compress import CompressOptions, compress
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.hf import import_hf
from nvgpu.gpu import Device
from nvgpu.model.executor import Executor
from nvgpu.model.net import Net, NetOptions
from nvgpu.ops import tolerance as tol
from tests.model.reference import reference_net
from tests.random_model import ODD, make_config, make_tensors, write_folder

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[1] / "data"


def load(name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    with np.load(DATA / f"golden_{name}.npz") as data:
        golden = dict(data)
    return golden, json.loads(str(golden["config"]))


def converted(folder: Path, config: dict[str, Any], seed: int) -> Path:
    source = folder / "hf"
    write_folder(source, config, make_tensors(config, seed))
    import_hf(source, folder / "model.cmf", dtype="f32")
    return folder / "model.cmf"


@pytest.mark.parametrize(("name", "seed"), [("odd_sizes", None), ("rope_params", 1)])
def test_against_transformers(device: Device, tmp_path: Path, name: str, seed: int | None) -> None:
    golden, config = load(name)
    ids = golden["ids"]
    path = converted(tmp_path, config, int(golden["seed"]) if seed is None else seed)
    with CmfFile.open(path) as model:
        executor = Executor(Net(device, model, NetOptions(ids.shape[1])))
    hidden = executor.forward(ids.reshape(-1).astype(np.uint32))
    logits = executor.net.head.logits(executor.rec, executor.ws, hidden).reshape(*ids.shape, -1)
    last = hidden.read().reshape(*ids.shape, -1)
    executor.free()
    executor.net.free()
    if name == "odd_sizes":
        tail = golden["logits_tail"].shape[1]
        want_logits, want_hidden = golden["logits_tail"], golden["hidden_tail_2"]
        logits, last = logits[:, -tail:], last[:, -tail:]
    else:
        want_logits, want_hidden = golden["logits"], golden["hidden_2"]
    errors = [float(np.abs(a - b).max()) for a, b in ((last, want_hidden), (logits, want_logits))]
    print(f"{name}: hidden {errors[0]:.2e}, logits {errors[1]:.2e}")
    assert errors[0] <= tol.GOLDEN_HIDDEN and errors[1] <= tol.GOLDEN_LOGITS


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("paths", [1, 2])
def test_gradients_of_a_compressed_student(device: Device, tmp_path: Path, head_dim: int, paths: int) -> None:
    """Every h, l, g and gain against the float64 net, T = 65 and B = 3."""
    config = make_config(**{**ODD, "linear_key_head_dim": head_dim, "linear_value_head_dim": head_dim})
    student = tmp_path / "student.cmf"
    with CmfFile.open(converted(tmp_path, config, 5)) as model:
        compress(model, student, CompressOptions(1.5, "svid-refit", paths=paths, refine_signs=False))
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 3001, (3, 65)).astype(np.uint32)
    top = np.stack([rng.choice(3001, 8, replace=False) for _ in range(195)]).astype(np.uint32)
    p = rng.random((195, 8)).astype(np.float32)
    p /= p.sum(axis=1, keepdims=True)
    with CmfFile.open(student) as model:
        reference = reference_net(model)
        executor = Executor(Net(device, model, NetOptions(65, trainable=True)))
    want_loss, want = reference.loss_and_grads(ids, top.reshape(3, 65, 8), p.reshape(3, 65, 8))
    rows = executor.step(ids.reshape(-1), top, p, np.full(195, 1 / 195, np.float32))
    grads = executor.net.params.unpack(executor.net.params.grads.read())
    executor.free()
    executor.net.free()
    assert float(rows.mean(dtype=np.float64)) == pytest.approx(want_loss, rel=1e-5)
    worst = max(
        float(np.linalg.norm(grad - want[name]) / np.linalg.norm(want[name])) for name, grad in grads.items()
    )
    print(f"head dim {head_dim}, {paths} paths: {len(grads)} gradients, worst relative L2 {worst:.2e}")
    assert worst <= tol.GOLDEN_GRAD_REL_L2
