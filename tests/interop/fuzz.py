"""Damaged and hostile files, made of golden ones and of nothing; the same seed makes the same file."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load as parsed
from safetensors.torch import save

from osae.files import CHECKSUM

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(folder.name for folder in GOLDEN.iterdir())

# --- damage -----------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != "expected.npz"}


def weights_in(files: dict[str, bytes]) -> str:
    return next(name for name in files if not name.endswith(".json"))


def truncated(files, rng):
    name = rng.choice(sorted(files))
    files[name] = files[name][: rng.randrange(len(files[name]))]


def overwritten(files, rng):
    name = rng.choice(sorted(files))
    data = bytearray(files[name])
    for _ in range(rng.choice([1, 4, 64])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    files[name] = bytes(data)


def spliced(files, rng):
    name = rng.choice(sorted(files))
    data = files[name]
    start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
    files[name] = rng.choice([data[:start] + data[stop:], data[:stop] + data[start:], data + data])


ODD = [
    None,
    True,
    "x",
    "",
    [],
    {},
    -1,
    0,
    3,
    2.5,
    1e308,
    float("nan"),
    10**30,
    [[1]],
    {"kind": "TopK"},
    "relu",
]


def reworded(files, rng):
    """A config with an odd value, a key less or a key more, in some place."""
    names = [name for name in files if name.endswith(".json")]
    if not names:
        return truncated(files, rng)
    held = json.loads(files[names[0]])
    place = held
    while (
        inner := [key for key, value in place.items() if isinstance(value, dict) and value]
    ) and rng.random() < 0.6:
        place = place[rng.choice(inner)]
    key = rng.choice(sorted(place)) if place else "k"
    change = rng.random()
    if change < 0.2:
        place.pop(key, None)
    elif change < 0.3:
        place[f"{key}_more"] = rng.choice(ODD)
    else:
        place[key] = rng.choice(ODD)
    files[names[0]] = rng.choice(
        [json.dumps(held), json.dumps(held), json.dumps([held]), "[" * 5000]
    ).encode()
    return None


def tensors(files) -> dict:
    name = weights_in(files)
    match Path(name).suffix:
        case ".pt":
            try:
                return torch.load(io.BytesIO(files[name]), weights_only=True)
            except pickle.UnpicklingError:  # a whole module; any tensors will do
                return {"dictionary._weights": torch.eye(4, 8), "encoder.weight": torch.eye(4, 8)}
        case ".npz":
            return {key: torch.from_numpy(a) for key, a in np.load(io.BytesIO(files[name])).items()}
        case _:
            return parsed(files[name])


def put(files, state) -> None:
    name = weights_in(files)
    file = io.BytesIO()
    match Path(name).suffix:
        case ".pt":
            torch.save(state, file)
            files[name] = file.getvalue()
        case ".npz":
            np.savez(file, **{key: tensor.numpy() for key, tensor in state.items()})
            files[name] = file.getvalue()
        case _:
            files[name] = save({key: tensor.contiguous() for key, tensor in state.items()})


def poisoned(value):
    def change(tensor, rng):
        tensor = tensor.float().clone(memory_format=torch.contiguous_format)
        if tensor.numel():
            tensor.view(-1)[rng.randrange(tensor.numel())] = value
        return tensor

    return change


RESHAPED = [
    lambda t, rng: t.T if t.ndim == 2 else t[None],
    lambda t, rng: t[:-1] if t.ndim else t[None, None],
    lambda t, rng: torch.cat([t, t]) if t.ndim else t[None],
    lambda t, rng: t.reshape(-1),
    lambda t, rng: t[..., None],
    lambda t, rng: t.new_zeros((0, *t.shape[1:])),
    lambda t, rng: t.new_zeros(()),
    lambda t, rng: t.new_zeros(1, 1, 1, 1),
    lambda t, rng: torch.zeros_like(t),
    lambda t, rng: t * 1e30,
    poisoned(float("nan")),
    poisoned(float("inf")),
    *(lambda t, rng, dtype=dtype: t.to(dtype) for dtype in (torch.int64, torch.bool, torch.uint8)),
    *(lambda t, rng, dtype=dtype: t.to(dtype) for dtype in (torch.float64, torch.float16, torch.complex64)),
]


def refitted(files, rng):
    """Another shape, type or value for one tensor; or one fewer, or one more."""
    state = tensors(files)
    inner = state["ae"] if isinstance(state.get("ae"), dict) else state
    names = [name for name, held in inner.items() if isinstance(held, torch.Tensor)]
    name, change = rng.choice(names), rng.random()
    if change < 0.15:
        del inner[name]
    elif change < 0.25:
        extra = rng.choice(["W_dec", "k", "threshold", "W_skip", "extra"])
        generator = torch.Generator().manual_seed(rng.randrange(2**32))
        inner[extra] = torch.randn(rng.choice([(), (3,), (3, 3)]), generator=generator)
    else:
        inner[name] = rng.choice(RESHAPED)(inner[name], rng)
    put(files, state)


DAMAGE = [truncated, overwritten, spliced, reworded, reworded, refitted, refitted]


def damaged_folder(name: str, seed: str, into: Path) -> None:
    """The golden folder of that name, damaged in some way; what was there before is removed."""
    rng = random.Random(f"{name} {seed}")
    files = files_of(GOLDEN / name)
    rng.choice(DAMAGE)(files, rng)
    put_files(files, into)


def damaged_own(whole: Path, seed: str, into: Path) -> None:
    """The SAE that we saved in `whole`, damaged in some way; half the time with a digest that fits."""
    rng = random.Random(seed)
    files = files_of(whole)
    rng.choice(DAMAGE)(files, rng)
    if rng.random() < 0.5:
        resealed(files)
    put_files(files, into)


def put_files(files: dict[str, bytes], into: Path) -> None:
    into.mkdir(exist_ok=True)
    for old in into.iterdir():
        old.unlink()
    for name, data in files.items():
        (into / name).write_bytes(data)


def resealed(files):
    """The digests in sae.json set to those of what was changed, so that it is looked at."""
    try:
        about = json.loads(files["sae.json"])
    except (ValueError, RecursionError):
        return
    if isinstance(about, dict):
        about |= {"sha256": hashlib.sha256(files["sae.safetensors"]).hexdigest()}
        about.pop(CHECKSUM, None)
        files["sae.json"] = json.dumps(about).encode()


# --- hostile pickles --------------------------------------------------------------------------------


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def archive(pickled: bytes, **records: bytes) -> bytes:
    """A torch archive around a pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as held:
        held.writestr("archive/data.pkl", pickled)
        held.writestr("archive/version", b"3\n")
        held.writestr("archive/byteorder", b"little")
        for name, data in records.items():
            held.writestr(f"archive/data/{name}", data)
    return file.getvalue()


def hostile_objects(canary: str):
    yield Call(os.system, f"touch {canary}")
    yield Call(eval, f"open({canary!r}, 'w')")
    yield Call(exec, f"open({canary!r}, 'w')")
    yield Call(open, canary, "w")
    yield Call(subprocess.check_output, ["touch", canary])
    yield Call(Path.touch, Path(canary))
    yield Call(shutil.copyfile, "/etc/hostname", canary)
    yield Call(np.savetxt, canary, [1.0])
    yield Call(torch.load, canary)
    yield Call(bytearray, 10**11)
    yield Call(torch.FloatTensor, 10**11)
    yield Call(torch.UntypedStorage, 10**11)
    yield Call(torch.zeros, 10**6, 10**6)
    yield Call(torch.nn.Linear, 10**5, 10**5)
    yield Call(getattr, "text", "upper")
    yield torch.nn.Linear(2, 2)
    yield Call  # a class by its name alone


def hostile_pickles(canary: str):
    for thing in hostile_objects(canary):
        for protocol in (0, 2, 4, 5):
            for held in (thing, {"W_dec": thing}, [thing]):
                yield pickle.dumps(held, protocol=protocol)
    touch = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
    yield touch
    yield b"(S'touch " + canary.encode() + b"'\nios\nsystem\n."
    yield b"\x80\x02" + b"\x8e" + struct.pack("<Q", 2**60) + b"."  # BINBYTES8 of 2^60 bytes
    yield b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."  # BYTEARRAY8 of 2^40 bytes
    yield b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b"."  # LONG_BINPUT at memo place 2^32 - 1
    yield b"\x80\x02" + b"]" * 100_000 + b"."
    yield b"\x80\x02" + b"}" + b"h\x00" * 100 + b"."
    yield b""
    yield b"."


def hostile_files(canary: str):
    """File names and contents: each hostile pickle as it is and in an archive, under names that are read."""
    for pickled in hostile_pickles(canary):
        yield "ae.pt", archive(pickled)
        for name in ("ae.pt", "d.npy", "params.npz"):
            yield name, pickled


# --- bombs ------------------------------------------------------------------------------------------


def npy(shape, data=b"", descr="<f4", version=b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}}}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def safetensors(header, data=b"", length=None) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def outline(size, stride, numel, storage="FloatStorage") -> bytes:
    """The pickle of {"W_dec": a float tensor} with these declarations over record 0."""

    class Pickler(pickle._Pickler):  # pyright: ignore
        def persistent_id(self, obj):
            return ("storage", getattr(torch, storage), "0", "cpu", numel) if obj == "here" else None

    file = io.BytesIO()
    call = Call(torch._utils._rebuild_tensor_v2, "here", 0, size, stride, False, None)
    Pickler(file, protocol=2).dump({"W_dec": call})
    return file.getvalue()


def bombs():
    """File names and contents that declare or unfold to far more than they hold."""
    zeros = bytes(20_000_000)
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        for name, member in (("d.npz", "d.npy"), ("ae.pt", "archive/data.pkl"), ("ae.pt", "archive/data/0")):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as held:
                if member == "archive/data/0":
                    held.writestr("archive/data.pkl", outline((5_000_000, 1), (1, 1), 5_000_000))
                    held.writestr("archive/version", b"3\n")
                held.writestr(member, npy((5_000_000, 1), zeros) if name == "d.npz" else zeros)
            yield name, file.getvalue()
            yield name, lying(file.getvalue(), 1000)
    for shape in ((10**6, 10**6), (2**40, 2**40), (-1, 8), (2**62, 4), (10**5, 10**5), (3,) * 40):
        yield "d.npy", npy(shape)
        yield "d.npy", npy(shape, bytes(64))
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as held:
            held.writestr("d.npy", npy(shape, bytes(64)))
        yield "d.npz", file.getvalue()
        size = [abs(length) for length in shape]
        about = {"dtype": "F32", "shape": size, "data_offsets": [0, min(4 * size[0] * size[1], 2**63)]}
        yield "d.safetensors", safetensors({"d": about}, bytes(64))
        yield "d.safetensors", safetensors({"d": about | {"data_offsets": [0, 64]}}, bytes(64))
        for stride in ((1, 1), (0, 0), (2**40, 1)) if size[0] * size[1] > 10**9 else ():
            for numel in (16, 10**9, 2**60):
                yield "ae.pt", archive(outline(tuple(size[:2]), stride, numel), **{"0": bytes(64)})
    yield "d.npy", npy((4, 4), bytes(64), descr="|V1000000000")
    yield "d.npy", npy((2**31, 2**31), descr="|S0")
    for length in (2**63, 2**40, 10**8, 10**9):
        yield "d.safetensors", safetensors({"d": {}}, length=length)
    yield "d.safetensors", safetensors(b"[" * 100_000)
    yield (
        "d.safetensors",
        safetensors(
            b'{"d":{"dtype":"F32","shape":[' + b"1," * 10_000 + b'1],"data_offsets":[0,4]}}', b"abcd"
        ),
    )


def lying(data: bytes, size: int) -> bytes:
    """The archive with every uncompressed size in its central directory and headers set to `size`."""
    changed = bytearray(data)
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = changed.find(mark)
        while at >= 0:
            changed[at + place : at + place + 4] = struct.pack("<I", size)
            at = changed.find(mark, at + 1)
    return bytes(changed)
