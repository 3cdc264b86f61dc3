"""`python -m nvgpu`."""

from nvgpu.cli.main import main

main(prog_name="nvgpu")
