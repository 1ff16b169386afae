"""Compile the GPU's programs for architectures that need not be there, and print their machine code.

`python compiled.py 80 _walk_back` prints the code of one program for compute capability 8.0.
"""

import inspect
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from osae.kernels import gpu

PLACES = ("units", "counts", "starts", "slots", "extra")  # of int64
NUMBERS = ("k", "d", "per", "count")
CONSTANTS = {"BLOCK": 1024, "ACC": tl.float32, "ATOMIC": True, "PIECE": gpu.PIECE}


def kind(name: str) -> str:
    """Return the type of an argument, by its name."""
    if name in CONSTANTS:
        return "constexpr"
    return "*i64" if name in PLACES else "i32" if name in NUMBERS else "*fp32"


def machine_code(name: str, capability: int) -> str:
    """Return the machine code of a program of `osae.kernels.gpu`."""
    program = getattr(gpu, name)
    arguments = list(inspect.signature(program.fn).parameters)
    constants = {key: value for key, value in CONSTANTS.items() if key in arguments}
    source = ASTSource(program, {argument: kind(argument) for argument in arguments}, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for each in sys.argv[2:]:
        print(machine_code(each, int(sys.argv[1])))
