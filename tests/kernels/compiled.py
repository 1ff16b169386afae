"""Compile the GPU's programs for architectures that need not be there, and print what came of it as JSON.

`python compiled.py 80 _walk_back _step_atoms:2304` compiles two programs for compute capability 8.0, the
second one for a width of 2304: their machine code, registers, shared memory and spilled bytes.
"""

import inspect
import json
import re
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
COUNTS = ("k", "d", "per", "count")
NUMBERS = ("rate", "beta1", "beta2", "eps", "penalty")
CONSTANTS = {"BLOCK": gpu.BLOCK, "ACC": tl.float32, "ATOMIC": True, "PIECE": gpu.PIECE}
# what triton finds out by itself when a program is launched: storage is aligned, and common widths are
# multiples of 16
DIVISIBLE = [["tt.divisibility", 16]]
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def kind(name: str) -> str:
    """Return the type of an argument, by its name."""
    if name in CONSTANTS:
        return "constexpr"
    fixed = dict.fromkeys(PLACES, "*i64") | dict.fromkeys(COUNTS, "i32")
    return (fixed | dict.fromkeys(NUMBERS, "fp32")).get(name, "*fp32")


def compile_program(name: str, capability: int, width: int) -> dict:
    """Return the machine code of a program of `osae.kernels.gpu`, and what it takes of a multiprocessor."""
    program = getattr(gpu, name)
    arguments = list(inspect.signature(program.fn).parameters)
    whole_rows = name == "_step_atoms"
    block = triton.next_power_of_2(width) if whole_rows else gpu.BLOCK
    warps = gpu.row_warps(block) if whole_rows else gpu.WARPS
    constants = {key: value for key, value in (CONSTANTS | {"BLOCK": block}).items() if key in arguments}
    kinds = {argument: kind(argument) for argument in arguments}
    aligned = {(i,): DIVISIBLE for i, (key, value) in enumerate(kinds.items()) if "*" in value or key == "d"}
    source = ASTSource(program, kinds, constants, aligned)
    target, options = GPUTarget("cuda", capability, 32), {"num_warps": warps}
    compiled = triton.compile(source, target=target, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        code, usage = (
            subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True)
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "--dump-resource-usage"))
        )
    used = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", usage.stdout)}
    used["SHARED"] = max(used["SHARED"], compiled.metadata.shared)  # also what is asked for at the launch
    return {"code": code.stdout, "warps": warps, **used}


def main(capability: str, *names: str) -> None:
    """Print every program by the name that was given."""
    found = {}
    for each in names:
        name, _, width = each.partition(":")
        found[each] = compile_program(name, int(capability), int(width or 576))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
