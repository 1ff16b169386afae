"""Safe reading of untrusted weight files.

No code in a file is run, and nothing is loaded before the declared sizes have been compared with the size on
disk, so that a small file cannot claim much memory.
"""

import pickletools
import zipfile
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from osae.array_files import list_arrays, read_npy_header
from osae.arrays import as_tensor
from osae.interop import modules
from osae.tensor_files import read_tensors

DEEPEST = 50  # nested dicts and lists
MOST = 20_000  # entries in a file
EXPANSION = 4  # a compressed .npz may expand to this many times its size on disk
SHARED = 2  # tensors of a .pt may be this many times as large as its data, since tied weights are stored once
ALONE = "decoder"  # name for a tensor that has none in its file

# The globals in the pickle of a state_dict. Each of these is harmless: it builds a tensor over bytes of the
# file, a dict, or a constant. torch's own list is longer, and includes functions that allocate memory.
_OPCODES = (
    {"PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "GLOBAL", "REDUCE", "BUILD", "BINPERSID"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"}
    | {"EMPTY_DICT", "SETITEM", "SETITEMS", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"}
    | {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING"}
)
_DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
_STORAGES = ["Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"]
_NAMES = (
    {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "torch Size",
    }
    | {f"torch {dtype}" for dtype in _DTYPES}
    | {f"torch {storage}Storage" for storage in _STORAGES}
)


def read_entries(path: Path) -> dict[str, Any]:
    """Return the entries of the file by name: tensors; in a .pt also numbers, strings and dicts of them."""
    if not path.is_file():
        raise ValueError("it is not a regular file: give a file or a folder of files.")
    if path.suffix not in READERS:
        raise ValueError(
            f"{path.suffix or 'files without a suffix'} cannot be read: give {', '.join(READERS)}."
        )
    open(path, "rb").close()  # a missing permission is reported by the system
    try:
        return READERS[path.suffix](path)
    except Exception as error:  # a hostile file can raise any exception in the libraries below
        raise ValueError(f"{path.name} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _from_safetensors(path: Path) -> dict[str, Any]:
    _check_count(len(list_arrays(path)))
    return read_tensors(path)


def _from_torch(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if not zipfile.is_zipfile(path):
        raise ValueError(
            "it is truncated, or a pickle outside of a torch archive, which could run code: save it again "
            "with torch.save in torch 1.6 or newer."
        )
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive, size, {zipfile.ZIP_STORED})
        pickles = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1 or any(name.endswith("constants.pkl") for name in archive.namelist()):
            raise ValueError("it is a zip file, but not one of tensors written by torch.save.")
        data = archive.read(pickles[0])
        _check_pickle(data, whole=(whole := modules.is_module(data)))
        if whole:
            return _from_module(archive, pickles[0], data, size)
    # the first pass creates tensors without memory, to find out how much the second one needs
    _check_tensors(torch.load(path, map_location="meta", weights_only=True), size)
    held = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(held, Tensor):
        return {ALONE: held.detach()}
    if not isinstance(held, dict):
        raise ValueError(
            f"it contains a {type(held).__name__}: a dict of tensors or a single tensor is required."
        )
    return {str(name): item for name, item in held.items()}


def _from_module(archive: zipfile.ZipFile, name: str, data: bytes, size: int) -> dict[str, Any]:
    folder = name.removesuffix("data.pkl") + "data/"
    held = modules.load_module(data, _NAMES, lambda key: archive.read(folder + key))
    _check_tensors(held, size)
    if not isinstance(held, modules.Inert):
        raise ValueError(f"it contains a {type(held).__name__}: a module is required.")
    return modules.flatten(held)


def _check_tensors(held: Any, size: int) -> None:
    """Raise `ValueError` if the tensors are views of more numbers than the file can contain."""
    _check_declared(
        sum(tensor.numel() * tensor.element_size() for tensor in _list_tensors(held)), SHARED * size
    )


def _check_pickle(data: bytes, *, whole: bool) -> None:
    opcodes = _OPCODES | modules.OPCODES if whole else _OPCODES
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in opcodes:
            raise ValueError(
                f"its pickle uses {opcode.name}, which tensors do not need: save it with torch.save."
            )
        if opcode.name != "GLOBAL" or argument in _NAMES or (whole and modules.stays_name(str(argument))):
            continue
        needed = str(argument).replace(" ", ".")
        raise ValueError(f"its pickle needs {needed}, but code in files is never run: save tensors only.")


def _list_tensors(held: Any) -> Iterator[Tensor]:
    """Yield every tensor inside nested containers, each once; raise `ValueError` if they are too deep."""
    seen: set[int] = set()
    level = [held]
    for _ in range(DEEPEST):
        new = {id(item): item for item in level if id(item) not in seen}
        seen |= new.keys()
        _check_count(len(seen))
        yield from (item for item in new.values() if isinstance(item, Tensor))
        level = [inner for item in new.values() for inner in _list_inside(item)]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep: save tensors by their names.")


def _list_inside(held: Any) -> Iterable[Any]:
    return held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else ()


def _from_npz(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive, EXPANSION * path.stat().st_size, {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
        _check_count(len(archive.infolist()))
        for member in archive.infolist():
            with archive.open(member) as file:
                _check_npy(file, member.file_size)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: as_tensor(arrays[name], repr(name)).contiguous() for name in arrays.files}


def _from_npy(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        _check_npy(file, path.stat().st_size)
    return {ALONE: as_tensor(np.load(path, allow_pickle=False), "the array").contiguous()}


def _check_npy(file: BinaryIO | Any, size: int) -> None:
    """Raise `ValueError` if the header of an array does not match its data."""
    shape, _, dtype = read_npy_header(file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects, but code in files is never run: save numbers only.")
    count = prod(shape)
    if count * dtype.itemsize != size - file.tell():
        raise ValueError(
            f"it declares {count * dtype.itemsize} bytes of data but contains {size - file.tell()}: it is "
            "truncated or damaged."
        )


def _check_archive(archive: zipfile.ZipFile, limit: int, methods: set[int]) -> None:
    _check_declared(sum(member.file_size for member in archive.infolist()), limit)
    # numpy deflates and reads in pieces, torch stores; anything else may expand to more than it declares
    if {member.compress_type for member in archive.infolist()} - methods:
        raise ValueError("it uses a compression method that its library does not use: save it again.")


def _check_count(count: int) -> None:
    if count > MOST:
        raise ValueError(
            f"it contains {count} entries, more than the limit of {MOST}: give the file of an SAE."
        )


def _check_declared(declared: int, limit: int) -> None:
    if declared > limit:
        raise ValueError(
            f"it declares {declared} bytes, but its size on disk allows {limit}: save it again uncompressed."
        )


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".safetensors": _from_safetensors,
    ".pt": _from_torch,
    ".pth": _from_torch,
    ".npz": _from_npz,
    ".npy": _from_npy,
}
