"""What the log and the report say about a run before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvgpu import __version__
from nvgpu.formats.cmf import CmfFile
from nvgpu.formats.text import TextSource
from nvgpu.gpu import Device
from nvgpu.model.size import body_bpw, file_bpw
from nvgpu.train.options import TrainOptions
from nvgpu.train.windows import Windows


def facts_of(
    device: Device,
    student: CmfFile,
    teacher: CmfFile,
    sources: Sequence[TextSource],
    windows: Windows,
    options: TrainOptions,
    output: Path,
) -> dict[str, Any]:
    """What the log and the report say about a run; file names without folders."""
    path = Path(student.path)
    return {
        "tool": f"nvgpu {__version__}",
        "adapter": device.adapter.label,
        "matrix_units": device.matrix_units,
        "student": {"file": path.name, "bytes": path.stat().st_size, **sizes(path)},
        "teacher": Path(teacher.path).name,
        "calibration": [source.path.name for source in sources],
        "output": output.name,
        "training_windows": int(windows.train.size) // options.window,
        "held_out_windows": int(windows.held_out.size) // options.window,
        "total_steps": windows.scored_batches * options.epochs,
        "options": options.record(),
        "signs": options.signs.record() if options.signs else None,
    }


def sizes(path: Path) -> dict[str, float | None]:
    """Bits per weight of a model file, whole and of its body linears."""
    with CmfFile.open(path) as model:
        return {"bpw_file": file_bpw(model), "bpw_body": body_bpw(model)}
