"""nvgpu: compress and distil large language models on any GPU."""

__version__ = "0.1.0"
