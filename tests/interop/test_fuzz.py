"""Damaged and hostile files: each loads, or ends in one clear line; none runs code or takes undue memory."""

import copy
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as parsed
from safetensors.torch import save

from osae.interop import load
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = sorted(folder.name for folder in GOLDEN.iterdir())
CASES = 66  # per folder
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def outcome(path) -> str:
    """How loading ended: 'loaded' if the SAE can be used, else the message, which must be one clear line."""
    try:
        loaded = load(path)
    except ValueError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(path))
        assert len(message) > len(str(path)) + 10
        return message
    assert loaded.decoder.ndim == 2
    assert loaded.decoder.isfinite().all()
    if loaded.sae is not None:
        with torch.no_grad():
            recon, code = loaded.sae(torch.zeros(2, loaded.width))
        assert recon.shape == (2, loaded.width)
        assert int(code.units.max()) < loaded.units
    return "loaded"


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
            return torch.load(io.BytesIO(files[name]), weights_only=True)
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
        inner[rng.choice(["W_dec", "k", "threshold", "W_skip", "extra"])] = torch.randn(
            rng.choice([(), (3,), (3, 3)])
        )
    else:
        inner[name] = rng.choice(RESHAPED)(inner[name], rng)
    put(files, state)


DAMAGE = [truncated, overwritten, spliced, reworded, reworded, refitted, refitted]


def damaged_folder(name: str, seed: str, into: Path) -> None:
    rng = random.Random(f"{name} {seed}")
    files = copy.deepcopy(files_of(GOLDEN / name))
    rng.choice(DAMAGE)(files, rng)
    for old in into.iterdir():
        old.unlink()
    for file, data in files.items():
        (into / file).write_bytes(data)


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_files_load_or_say_why_in_one_line(name, tmp_path):
    ends = [outcome_of_damage(name, str(case), tmp_path) for case in range(CASES)]
    assert sum(end != "loaded" for end in ends) > CASES // 4  # the damage is real


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_many_more_damaged_files(name, tmp_path):
    for case in range(20 * CASES):
        outcome_of_damage(name, f"more {case}", tmp_path)


def outcome_of_damage(name: str, seed: str, folder: Path) -> str:
    damaged_folder(name, seed, folder)
    return outcome(folder)


def test_damage_to_our_own_files(tmp_path):
    SAE(SAEConfig(8, 32, TopK(4))).save(tmp_path / "whole")
    files = files_of(tmp_path / "whole")
    (tmp_path / "damaged").mkdir()
    for case in range(200):
        changed, rng = dict(files), random.Random(case)
        rng.choice(DAMAGE)(changed, rng)
        if rng.random() < 0.5 and changed["sae.safetensors"] != files["sae.safetensors"]:
            resealed(changed)
        for name, data in changed.items():
            (tmp_path / "damaged" / name).write_bytes(data)
        outcome(tmp_path / "damaged")


def resealed(files):
    """The digest in sae.json set to that of the changed weights, so that they are looked at."""
    about = json.loads(files["sae.json"])
    files["sae.json"] = json.dumps(
        about | {"sha256": hashlib.sha256(files["sae.safetensors"]).hexdigest()}
    ).encode()


def test_config_that_asks_for_a_huge_sae_allocates_nothing(tmp_path):
    SAE(SAEConfig(8, 32, TopK(4))).save(tmp_path)
    about = json.loads((tmp_path / "sae.json").read_text())
    about["config"] |= {"width": 10**9, "units": 10**9}
    (tmp_path / "sae.json").write_text(json.dumps(about))
    assert "sae.json makes it (1000000000, 1000000000)" in outcome(tmp_path)


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


def test_hostile_pickles_are_refused_and_run_nothing(tmp_path):
    canary = tmp_path / "ran"
    count = 0
    for pickled in hostile_pickles(str(canary)):
        for name, data in (
            ("ae.pt", archive(pickled)),
            ("ae.pt", pickled),
            ("d.npy", pickled),
            ("params.npz", pickled),
        ):
            folder = tmp_path / "case"
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
            assert outcome(folder / name) != "loaded"
            count += 1
        assert not canary.exists()
    assert count > 800


def test_the_reason_names_what_the_pickle_needs(tmp_path):
    path = tmp_path / "ae.pt"
    torch.save(torch.nn.Linear(2, 2), path)
    assert "torch.nn.modules.linear.Linear, and code in files is never run" in outcome(path)


def test_arrays_of_objects_are_refused(tmp_path):
    canary = tmp_path / "ran"
    array = np.array([[Call(eval, f"open({str(canary)!r}, 'w')")]], dtype=object)
    np.save(tmp_path / "d.npy", array, allow_pickle=True)
    np.savez(tmp_path / "d.npz", d=array)
    for name in ("d.npy", "d.npz"):
        assert "Python objects" in outcome(tmp_path / name)
    assert not canary.exists()


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


def load_bombs(folder: str) -> None:
    """Loads every file below the folder and prints how many there were and the rise of the memory's peak."""
    for warm in ("sparsify", "dictionary_learning-AutoEncoderTopK", "gemma_scope"):
        load(GOLDEN / warm)
    made = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    before = peaks()
    for path in made:
        assert outcome(path) != "loaded", path
    print(len(made), *(after - start for after, start in zip(peaks(), before, strict=True)))


def peaks() -> tuple[int, int]:
    """The highest resident and virtual memory of this process so far, in kB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]), int(fields["VmPeak"].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory peaks from /proc")
def test_bombs_are_refused_without_memory(tmp_path):
    for number, (name, data) in enumerate(bombs()):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_bytes(data)
    code = "import sys; from tests.interop.test_fuzz import load_bombs; load_bombs(sys.argv[1])"
    child = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(child, cwd=root, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    count, resident, virtual = map(int, done.stdout.split())
    assert count > 70
    assert resident < 10_000  # kB; each bomb would take 20 MB or more
    assert virtual < 10_000


def test_special_files_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "ae.pt")
    assert "not a regular file" in outcome(tmp_path / "ae.pt")
    (tmp_path / "d.npy").symlink_to("/dev/zero")
    assert "not a regular file" in outcome(tmp_path / "d.npy")
