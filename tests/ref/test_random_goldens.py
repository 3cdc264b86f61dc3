"""The float64 net against transformers on small random models (tools/make_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nvgpu.ref import head
from nvgpu.ref.net import Arch, RefNet
from tests.random_model import make_tensors

Array = np.ndarray[Any, Any]
DATA = Path(__file__).parents[1] / "data"


def load(name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    with np.load(DATA / f"golden_{name}.npz") as data:
        golden = dict(data)
    return golden, json.loads(str(golden["config"]))


def worst(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max())


def test_rope_parameters_win_over_top_level() -> None:
    golden, config = load("rope_params")
    assert config["rope_parameters"]["rope_theta"] != config["rope_theta"]
    weights = {n.removeprefix("weight:"): w for n, w in golden.items() if n.startswith("weight:")}
    recipe = make_tensors(config, seed=1)
    assert weights.keys() == recipe.keys()
    assert all(np.array_equal(weights[name], recipe[name]) for name in weights)
    found = RefNet.build(weights, config).forward(golden["ids"])
    for i, state in enumerate(found.hidden):
        assert worst(state, golden[f"hidden_{i}"]) < 1e-4, i
    assert worst(found.logits, golden["logits"]) < 1e-4
    top_level = {n: config[n] for n in ("rope_theta", "partial_rotary_factor")}
    other = RefNet.build(weights, config | {"rope_parameters": top_level}).forward(golden["ids"])
    assert worst(other.logits, golden["logits"]) > 0.1


def test_odd_sizes() -> None:
    golden, config = load("odd_sizes")
    net = RefNet.build(make_tensors(config, int(golden["seed"])), config)
    found = net.forward(golden["ids"])
    tail = golden["logits_tail"].shape[1]
    for i, state in enumerate(found.hidden):
        assert worst(state[:, -tail:], golden[f"hidden_tail_{i}"]) < 1e-4, i
    assert worst(found.logits[:, -tail:], golden["logits_tail"]) < 1e-4
    rows = found.logits[:, :-1].reshape(-1, config["vocab_size"])
    nll = head.nll(rows, golden["ids"][:, 1:].reshape(-1))
    assert worst(nll, golden["nll"].reshape(-1)) < 1e-4


def test_config_fallbacks() -> None:
    _, config = load("rope_params")
    both = Arch.from_config(config).inv_freq
    assert len(both) == 6 and np.isclose(both[1], 500.0 ** (-2 / 12))
    partly = Arch.from_config(config | {"rope_parameters": {"rope_theta": 500.0}}).inv_freq
    assert len(partly) == 2 and np.isclose(partly[1], 500.0 ** (-2 / 4))
    bare = {n: v for n, v in config.items() if n not in ("rope_theta", "partial_rotary_factor")}
    silent = Arch.from_config(bare | {"rope_parameters": None}).inv_freq
    assert len(silent) == 2 and np.isclose(silent[1], 1e4 ** (-2 / 4))
