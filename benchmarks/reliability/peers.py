"""Inject the same faults into osae, SAELens, sparsify and dictionary_learning, at small sizes.

    PYTHONPATH=src .venv-interop/bin/python -m benchmarks.reliability.peers [--out DIR] [--only NAME]

Every library saves and reads an SAE of 2,048 units of width 256 with its own functions. Results are written
to peers.json and table.md.

    killed      SIGKILL at a random moment while one save replaces another: what can be read afterwards
    full disk   the same on a disk with room for one save only
    bit flip    a bit of the weight file is flipped: whether reading it fails
    pickle      a pickle that runs a command, instead of a file that the library unpickles
    NaN         one NaN in a batch of training data
    resume      20 steps, compared with 10 steps, a checkpoint, and 10 steps by new objects on the same data
    two         a second process writes to the same folder while the first one trains
"""

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

UNITS, WIDTH, K, BATCH, STEPS = 2048, 256, 8, 64, 20
KILLS, FLIPS = 100, 200
SMALL = 32  # units of SAEs that are trained
MOUNT = 'mount -t tmpfs -o size="$SIZE" tmpfs "$0" && exec "$@"'


class Library(Protocol):
    """A library's own functions; None where it has no such function."""

    package: str
    unpickled: str | None  # a file that is read with pickle

    def make(self, seed: int) -> Any: ...
    def save(self, made: Any, folder: Path) -> None: ...
    def load(self, folder: Path) -> list[Tensor]: ...
    def weights(self, folder: Path) -> Path: ...
    def train(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor] | None: ...
    def resume(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor] | None: ...
    def unpickle(self, file: Path) -> None: ...


def draw(seed: int) -> Tensor:
    """Return the atoms of an SAE."""
    return torch.randn(UNITS, WIDTH, generator=torch.Generator().manual_seed(seed)) / WIDTH**0.5


class Osae:
    """osae itself: `SAE.save`, `SAE.load`, and training runs in a folder."""

    package, unpickled = "osae", "ae.pt"

    def make(self, seed: int) -> Any:
        from osae.model import SAE, SAEConfig
        from osae.sparsify import TopK

        return SAE(SAEConfig(WIDTH, UNITS, TopK(K)), atoms=draw(seed))

    def save(self, made: Any, folder: Path) -> None:
        made.save(folder)

    def load(self, folder: Path) -> list[Tensor]:
        from osae.model import SAE

        return list(SAE.load(folder).state_dict().values())

    def weights(self, folder: Path) -> Path:
        return folder / "sae.safetensors"

    def train(self, batches: Sequence[Tensor], folder: Path, stop: int | None = None) -> list[Tensor]:
        import numpy as np

        from osae.data.shards import Shards
        from osae.data.source import OnDisk
        from osae.model import SAE
        from osae.recipes import Task, recipe
        from osae.training import run as runs

        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "x.npy", torch.cat(list(batches)).numpy())
        source = OnDisk(str(folder / "x.npy"), Shards(folder / "x.npy").provenance()["sha256"])
        made = recipe("topk", Task(WIDTH, SMALL, K, STEPS * BATCH, batch=BATCH))
        runs.create(folder / "run", runs.RunConfig((made,), (0,), source))

        def halt(done: int, *_: object) -> None:
            if done == stop:
                raise KeyboardInterrupt

        runs.go(folder / "run", progress=halt)
        return list(SAE.load(folder / "run" / "topk-seed0").state_dict().values())

    def resume(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor]:
        from osae.model import SAE
        from osae.training import run as runs

        with suppress(KeyboardInterrupt, runs.Interrupted):
            self.train(batches, folder, stop=STEPS // 2)
        runs.go(folder / "run")
        return list(SAE.load(folder / "run" / "topk-seed0").state_dict().values())

    def unpickle(self, file: Path) -> None:
        from osae.interop import load

        load(file)


class SaeLens:
    """SAELens: `save_model`, `load_from_disk`, and `SAETrainer` with its checkpoints."""

    package, unpickled = "sae-lens", "trainer_state.pt"

    def _make(self, units: int, seed: int) -> Any:
        from sae_lens import TopKTrainingSAE, TopKTrainingSAEConfig

        torch.manual_seed(seed)
        return TopKTrainingSAE(TopKTrainingSAEConfig(d_in=WIDTH, d_sae=units, k=K))

    def make(self, seed: int) -> Any:
        return self._make(UNITS, seed)

    def save(self, made: Any, folder: Path) -> None:
        made.save_model(folder)

    def load(self, folder: Path) -> list[Tensor]:
        from sae_lens import SAE

        return list(SAE.load_from_disk(folder).state_dict().values())

    def weights(self, folder: Path) -> Path:
        return folder / "sae_weights.safetensors"

    def _trainer(self, sae: Any, batches: Sequence[Tensor]) -> Any:
        from sae_lens.config import SAETrainerConfig
        from sae_lens.training.sae_trainer import SAETrainer

        config = SAETrainerConfig(STEPS * BATCH, train_batch_size_samples=BATCH, lr=1e-3, lr_end=1e-3)
        return SAETrainer(config, sae, iter(batches))

    def train(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor]:
        trainer = self._trainer(self._make(SMALL, 0), batches)
        trainer.fit()
        trainer.save_checkpoint("checkpoint", folder)
        return [tensor.detach() for tensor in trainer.sae.parameters()]

    def resume(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor]:
        half = STEPS // 2
        first = self._trainer(self._make(SMALL, 0), batches)
        for batch in batches[:half]:
            first.step(batch)
            first.n_training_steps += 1
        first.save_checkpoint("half", folder)
        sae = self._make(SMALL, 1)
        sae.load_weights_from_checkpoint(folder / "half")
        second = self._trainer(sae, batches[half:])
        second.load_trainer_state(folder / "half")
        second.fit()
        return [tensor.detach() for tensor in second.sae.parameters()]

    def unpickle(self, file: Path) -> None:
        trainer = self._trainer(self._make(SMALL, 0), [])
        trainer.save_checkpoint("there", file.parent)
        shutil.copy(file, file.parent / "there" / "trainer_state.pt")
        trainer.load_trainer_state(file.parent / "there")


class Sparsify:
    """sparsify: `save_to_disk` and `load_from_disk`; its trainer needs a language model and is not run."""

    package, unpickled = "eai-sparsify", None

    def make(self, seed: int) -> Any:
        from sparsify import SparseCoder, SparseCoderConfig

        torch.manual_seed(seed)
        return SparseCoder(WIDTH, SparseCoderConfig(num_latents=UNITS, k=K))

    def save(self, made: Any, folder: Path) -> None:
        made.save_to_disk(folder)

    def load(self, folder: Path) -> list[Tensor]:
        from sparsify import SparseCoder

        return list(SparseCoder.load_from_disk(folder).state_dict().values())

    def weights(self, folder: Path) -> Path:
        return folder / "sae.safetensors"

    def train(self, batches: Sequence[Tensor], folder: Path) -> None:
        return None

    def resume(self, batches: Sequence[Tensor], folder: Path) -> None:
        return None

    def unpickle(self, file: Path) -> None:
        raise NotImplementedError


class DictionaryLearning:
    """dictionary_learning: `trainSAE`, which saves, and `load_dictionary`; it cannot resume."""

    package, unpickled = "dictionary-learning", "ae.pt"

    def _config(self, units: int) -> dict[str, Any]:
        from dictionary_learning.trainers.top_k import AutoEncoderTopK, TopKTrainer

        sizes = {"steps": STEPS, "activation_dim": WIDTH, "dict_size": units, "k": K}
        about = {"layer": 0, "lm_name": "none", "device": "cpu", "seed": 0, "warmup_steps": 0}
        return {"trainer": TopKTrainer, "dict_class": AutoEncoderTopK, **sizes, **about}

    def make(self, seed: int) -> Any:
        from dictionary_learning.trainers.top_k import AutoEncoderTopK

        torch.manual_seed(seed)
        return AutoEncoderTopK(WIDTH, UNITS, K)

    def save(self, made: Any, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # the two statements with which trainSAE writes config and weights
        with open(folder / "config.json", "w") as file:
            json.dump({"trainer": {"dict_class": "AutoEncoderTopK", "k": K}}, file, indent=4)
        torch.save({name: tensor.cpu() for name, tensor in made.state_dict().items()}, folder / "ae.pt")

    def load(self, folder: Path) -> list[Tensor]:
        from dictionary_learning.utils import load_dictionary

        return list(load_dictionary(str(folder), "cpu")[0].state_dict().values())

    def weights(self, folder: Path) -> Path:
        return folder / "ae.pt"

    def train(self, batches: Sequence[Tensor], folder: Path) -> list[Tensor]:
        from dictionary_learning.training import trainSAE

        trainSAE(iter(batches), [self._config(SMALL)], STEPS, save_dir=str(folder), device="cpu")
        return list(torch.load(folder / "trainer_0" / "ae.pt").values())

    def resume(self, batches: Sequence[Tensor], folder: Path) -> None:
        return None

    def unpickle(self, file: Path) -> None:
        with open(file.parent / "config.json", "w") as config:
            json.dump({"trainer": {"dict_class": "AutoEncoderTopK", "k": K}}, config)
        from dictionary_learning.utils import load_dictionary

        load_dictionary(str(file.parent), "cpu")


LIBRARIES: dict[str, Library] = {
    "osae": Osae(),
    "SAELens": SaeLens(),
    "sparsify": Sparsify(),
    "dictionary_learning": DictionaryLearning(),
}


# --- the faults -------------------------------------------------------------------------------------


def read_back(library: Library, folder: Path, known: Sequence[list[Tensor]]) -> str:
    """Return which of the known saves can be read, or what is found instead."""
    try:
        found = library.load(folder)
    except Exception as error:
        return f"unreadable ({type(error).__name__})"
    for name, tensors in zip(("old", "new"), known, strict=False):
        if all(torch.equal(a, b) for a, b in zip(found, tensors, strict=True)):
            return name
    return "other content"


def know(library: Library, folder: Path) -> list[list[Tensor]]:
    """Return the content of two saves."""
    for seed in (0, 1):
        library.save(library.make(seed), folder / f"known{seed}")
    found = [[tensor.clone() for tensor in library.load(folder / f"known{seed}")] for seed in (0, 1)]
    for seed in (0, 1):
        shutil.rmtree(folder / f"known{seed}")
    return found


def try_kills(library: Library, folder: Path) -> dict[str, int]:
    """Kill a save that replaces another one, at random moments."""
    known = know(library, folder)
    old, new = library.make(0), library.make(1)
    started = time.perf_counter()
    library.save(old, folder / "out")
    seconds, moments, ends = time.perf_counter() - started, random.Random(0), Counter()
    while sum(ends.values()) < KILLS:
        library.save(old, folder / "out")
        if (child := os.fork()) == 0:
            library.save(new, folder / "out")
            os._exit(0)
        time.sleep(moments.uniform(0, 1.5 * seconds))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            ends[read_back(library, folder / "out", known)] += 1
    return dict(ends)


def try_full_disk(name: str, folder: Path) -> str:
    """Save over another save on a disk with room for one and a half, in a process that may mount a disk."""
    library = LIBRARIES[name]
    library.save(library.make(0), folder / "probe")
    used = sum(path.stat().st_size for path in (folder / "probe").iterdir()) // 1024
    (folder / "disk").mkdir()
    inside = ["unshare", "-rm", "sh", "-c", MOUNT, str(folder / "disk")]
    words = [sys.executable, "-m", "benchmarks.reliability.peers", "--full", name, str(folder / "disk")]
    environment = {**os.environ, "SIZE": f"{used * 3 // 2}k"}
    ran = subprocess.run([*inside, *words], capture_output=True, text=True, env=environment, check=False)
    return ran.stdout.splitlines()[-1] if ran.returncode == 0 else f"not tried: {ran.stderr[-200:]}"


def save_on_full_disk(library: Library, disk: Path) -> str:
    """Return whether the second save fails, and what can be read afterwards."""
    with tempfile.TemporaryDirectory() as beside:
        known = know(library, Path(beside))
    library.save(library.make(0), disk / "out")
    try:
        library.save(library.make(1), disk / "out")
        said = "no error"
    except Exception as error:
        said = f"{type(error).__name__}, {'' if str(disk) in str(error) else 'no '}file named"
    return f"{said}; afterwards {read_back(library, disk / 'out', known)}"


def try_flips(library: Library, folder: Path) -> dict[str, int]:
    """Flip one bit of the weight file at a time, and read the file."""
    known = know(library, folder)
    library.save(library.make(0), folder)
    file, ends, places = library.weights(folder), Counter(), random.Random(0)
    whole = file.read_bytes()
    for _ in range(FLIPS):
        data, place = bytearray(whole), places.randrange(len(whole))
        data[place] ^= 1 << places.randrange(8)
        file.write_bytes(data)
        end = read_back(library, folder, known)
        ends["refused" if end.startswith("unreadable") else "harmless" if end == "old" else "read"] += 1
    return dict(ends)


class _Hostile:
    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def try_pickle(library: Library, folder: Path) -> str:
    """Read a pickle that creates a folder if it is executed."""
    if library.unpickled is None:
        return "reads no pickles"
    folder.mkdir(parents=True)
    canary, file = folder / "canary", folder / library.unpickled
    file.write_bytes(pickle.dumps({"state": _Hostile(canary)}, protocol=2))
    try:
        library.unpickle(file)
        said = "read"
    except Exception as error:
        said = f"refused ({type(error).__name__})"
    return "run" if canary.exists() else said


def make_batches(bad: bool = False) -> list[Tensor]:
    """Return batches of activations, one number of which may be NaN."""
    rows = torch.randn(STEPS * BATCH, WIDTH, generator=torch.Generator().manual_seed(3))
    if bad:
        rows[BATCH * (STEPS // 2), 5] = float("nan")
    return list(rows.split(BATCH))


def try_nan(library: Library, folder: Path) -> str:
    """Train on data with one NaN."""
    try:
        found = library.train(make_batches(bad=True), folder)
    except Exception as error:
        return f"stops: {' '.join(str(error).replace(f'{folder}/', '').split())}"
    if found is None:
        return "not tried"
    spoiled = sum(int((~tensor.isfinite()).sum()) for tensor in found if tensor.is_floating_point())
    total = sum(tensor.numel() for tensor in found)
    return f"ends normally, {spoiled / total:.0%} of the weights NaN"


def try_resume(library: Library, folder: Path) -> str:
    """Compare an interrupted training run with an uninterrupted one."""
    whole = library.train(make_batches(), folder / "whole")
    found = library.resume(make_batches(), folder / "half")
    if found is None or whole is None:
        return "not tried" if whole is None else "no way to resume"
    largest = max(float((a.float() - b.float()).abs().max()) for a, b in zip(whole, found, strict=True))
    return "same bits" if largest == 0 else f"differs by {largest:.1g}"


def try_two(library: Library, folder: Path) -> str:
    """Train in a second process in the same folder while the first one is running."""

    def slowly() -> Iterator[Tensor]:
        for batch in make_batches():
            time.sleep(0.05)
            yield batch

    if isinstance(library, Sparsify):
        return "not tried"
    if isinstance(library, Osae):
        return _lock_twice(library, folder)
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            library.train(slowly(), folder)  # pyright: ignore[reportArgumentType]
        os._exit(0)
    try:
        time.sleep(0.3)
        library.train(make_batches(), folder)
        return "both write"
    except Exception as error:
        return f"refused ({type(error).__name__})"
    finally:
        os.waitpid(child, 0)


def _lock_twice(library: Osae, folder: Path) -> str:
    """Resume a run of osae that another process is writing to."""
    from osae.training import run as runs

    with suppress(KeyboardInterrupt, runs.Interrupted):
        library.train(make_batches(), folder, stop=STEPS // 2)
    if (child := os.fork()) == 0:
        with suppress(BaseException):
            runs.go(folder / "run", progress=lambda *_: time.sleep(0.2))
        os._exit(0)
    try:
        time.sleep(0.6)
        runs.go(folder / "run")
        return "both write"
    except ValueError as error:
        return "refused, the first one named" if f"process {child}" in str(error) else str(error)
    finally:
        os.waitpid(child, 0)


FAULTS: dict[str, Callable[[str, Path], Any]] = {
    "killed while a save replaces another": lambda name, folder: try_kills(LIBRARIES[name], folder),
    "disk full while a save replaces another": try_full_disk,
    "one bit of the weights flipped": lambda name, folder: try_flips(LIBRARIES[name], folder),
    "pickle that runs a command": lambda name, folder: try_pickle(LIBRARIES[name], folder),
    "one NaN in the training data": lambda name, folder: try_nan(LIBRARIES[name], folder),
    "resumed from a checkpoint": lambda name, folder: try_resume(LIBRARIES[name], folder),
    "a second writer in the same folder": lambda name, folder: try_two(LIBRARIES[name], folder),
}


def format_end(end: Any) -> str:
    """Return counts or a sentence as a table cell."""
    if isinstance(end, dict):
        return ", ".join(f"{what} {count}" for what, count in sorted(end.items()))
    return str(end)


def format_table(held: dict[str, Any]) -> str:
    """Return the findings as a Markdown table, with a column for each library."""
    lines = ["| fault | " + " | ".join(f"{name} {one['version']}" for name, one in held.items()) + " |"]
    lines.append("| :-- |" + " :-- |" * len(held))
    for fault in FAULTS:
        cells = (format_end(one["found"][fault]).replace("|", "/") for one in held.values())
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def find_version(name: str) -> str:
    if name == "osae":
        from osae import __version__

        return __version__
    return version(LIBRARIES[name].package)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write peers.json and table.md to this folder")
    parser.add_argument("--only", default="", help="only the libraries whose name contains this")
    parser.add_argument("--full", nargs=2, help=argparse.SUPPRESS)  # a library, and a small disk
    asked = parser.parse_args()
    sys.modules["nnsight"] = types.SimpleNamespace(LanguageModel=object)  # type: ignore[assignment]  # never called
    torch.set_num_threads(1)
    if asked.full:
        print(save_on_full_disk(LIBRARIES[asked.full[0]], Path(asked.full[1])))
        return 0
    for name in LIBRARIES:
        if asked.only in name:
            found = try_faults(name)
            if asked.out:
                keep(asked.out, name, found)
    return 0


def try_faults(name: str) -> dict[str, Any]:
    """Inject all faults into a library."""
    found = {}
    for fault, attempt in FAULTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            found[fault] = attempt(name, Path(scratch) / "x")
        print(f"{name}: {fault}: {format_end(found[fault])}", flush=True)
    return found


def keep(out: Path, name: str, found: dict[str, Any]) -> None:
    """Add the findings to those of other libraries, and write the table."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "peers.json"
    held = json.loads(file.read_text()) if file.exists() else {}
    held[name] = {"version": find_version(name), "found": found}
    held = {each: held[each] for each in LIBRARIES if each in held}
    file.write_text(json.dumps(held, indent=2) + "\n")
    (out / "table.md").write_text(f"# Faults put to libraries\n\n{format_table(held)}")


if __name__ == "__main__":
    sys.exit(main())
