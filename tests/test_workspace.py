"""Scratch buffers: growth, views, and memory shared by kinds that are never live together."""

from __future__ import annotations

from nvgpu.gpu import Device
from nvgpu.layers.workspace import Workspace


def test_a_name_keeps_its_memory_until_it_grows(device: Device) -> None:
    ws = Workspace(device)
    first = ws.buf("mlp.act", (64, 4))
    assert ws.buf("mlp.act", (64, 4)) is first
    assert ws.buf("mlp.act", (32, 2)).raw is first.raw
    grown = ws.buf("mlp.act", (128, 4))
    assert grown.raw is not first.raw and grown.name == "mlp.act"
    ws.free()


def test_kinds_of_a_group_share_memory_and_names_of_a_kind_do_not(device: Device) -> None:
    before = device.memory.live
    ws = Workspace(device)
    a = [ws.buf(f"early/gdn.{i}", (256,)) for i in range(3)]
    b = [ws.buf(f"early/attn.{i}", (128,)) for i in range(3)]
    assert len({x.raw for x in a}) == len({x.raw for x in b}) == 3
    assert {x.raw for x in a} == {x.raw for x in b}
    assert ws.buf("late/attn.0", (128,)).raw not in {x.raw for x in a}
    assert ws.buf("early/attn.0", (128,), "u32").raw not in {x.raw for x in a}
    ws.free()
    assert device.memory.live == before


def test_growth_leaves_what_others_hold(device: Device) -> None:
    before = device.memory.live
    ws = Workspace(device)
    gdn, attn = ws.buf("early/gdn.x", (64,)), ws.buf("early/attn.x", (64,))
    assert gdn.raw is attn.raw
    assert ws.buf("early/gdn.x", (4096,)).raw is not attn.raw
    ws.collect()
    attn.write(attn.read())  # still there
    ws.free()
    assert device.memory.live == before
