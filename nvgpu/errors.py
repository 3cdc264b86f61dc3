"""Every error nvgpu raises for a reason a user can act on: one tree, one file.

A message is one line. It names the file, tensor or option, what was found and what was expected.
"""


class NvgpuError(Exception):
    """Base class; the command line prints it as one line and exits with code 1."""


class InputError(NvgpuError):
    """An option or an input that cannot work: missing file, too little text, models that do not match."""


class FormatError(InputError):
    """A file that is not what it claims to be: truncated, malformed, unknown version or feature."""


class OutputError(NvgpuError):
    """An output that cannot be written; whatever stood at its path is untouched."""


class TrainingError(NvgpuError):
    """A run that cannot go on, such as one whose every step is non-finite."""


class Interrupted(NvgpuError):
    """A signal ended the run between two steps, after its state was saved; `exit_code` is 128 plus the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class GpuError(NvgpuError):
    """Base class of device errors."""


class NoAdapterError(GpuError):
    """No adapter on this machine, or none that matches the selector."""


class DeviceLostError(GpuError):
    """The device went away while work was queued on it."""


class OutOfMemoryError(GpuError):
    """An allocation failed; names the buffer and its bytes."""


class LimitError(GpuError):
    """A buffer, binding or dispatch exceeds what the device grants; names it, its size and the limit."""


class ShaderError(GpuError):
    """A shader did not compile; the position is mapped back to its source file."""
