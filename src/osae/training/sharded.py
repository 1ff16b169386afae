"""Checkpoints of dictionaries that are spread over ranks: each rank writes its own part, and can read any.

RUN/checkpoints/STEP/shard-*.safetensors   the parts, written by torch.distributed.checkpoint
RUN/checkpoints/STEP/checkpoint.json       the step count, the scales, and the digests of the parts

`checkpoint.json` is written last, so a folder that has one is complete. torch's own format stores its index
as a pickle, which can run code when it is read; its safetensors format, used here, cannot.
"""

import inspect
import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osae.files import atomic_write, file_sha256, read_json, seal
from osae.messages import shorten
from osae.ranks import Ranks

SCHEMA = 1
FOLDER, INDEX = "checkpoints", "checkpoint.json"


def is_available() -> bool:
    """Return whether this release of torch can write parts as safetensors; older releases cannot."""
    try:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    except ImportError:
        return False
    return "save_distributed" in inspect.signature(HuggingFaceStorageWriter).parameters


def _make_planner(places: Mapping[str, tuple[int, int]]) -> Any:
    """Return the planner that tells torch which rows of the whole tensor each part contains."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    def describe(name: str, tensor: Tensor) -> WriteItem:
        first, rows = places.get(name, (0, len(tensor)))
        offsets = torch.Size([first, *[0] * (tensor.ndim - 1)])
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets, tensor.size()),
            properties=TensorProperties.create_from_tensor(tensor),
            size=torch.Size([rows, *tensor.shape[1:]]),
        )
        return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)

    class Planner(DefaultSavePlanner):
        def create_local_plan(self) -> SavePlan:
            self.plan = SavePlan([describe(name, tensor) for name, tensor in self.state_dict.items()])
            return self.plan

        def lookup_object(self, index: MetadataIndex) -> Any:
            return self.state_dict[index.fqn]

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)


def write(
    folder: Path,
    parts: Mapping[str, Tensor],
    places: Mapping[str, tuple[int, int]],
    about: Mapping[str, Any],
    ranks: Ranks,
) -> None:
    """Write the parts of all ranks, which call this together, in a group that nothing else uses meanwhile.

    `places` contains the first row of each part, and the number of rows of the whole tensor.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    path = folder / FOLDER / f"{about['done']:012d}"
    if ranks.rank == 0:
        shutil.rmtree(path, ignore_errors=True)  # left by a killed process
    ranks.wait()
    single = sorted(name for name, tensor in parts.items() if tensor.ndim == 0)
    state = {name: tensor.reshape(1) if name in single else tensor for name, tensor in parts.items()}
    with _plain_errors(path):
        storage = HuggingFaceStorageWriter(str(path), save_distributed=True)
        save(state, storage_writer=storage, planner=_make_planner(places), process_group=ranks.group)
    mine = sorted(path.glob(f"shard-{ranks.rank + 1:05d}-*.safetensors"))
    digests: dict[str, str] = {}
    for found in ranks.gather_objects({file.name: file_sha256(file) for file in mine}):
        digests |= found
    if ranks.rank == 0:
        index = {**about, "schema": SCHEMA, "single": single, "files": digests}
        with atomic_write(path / INDEX) as beside:
            beside.write_text(json.dumps(seal(index), indent=2) + "\n")


def list_whole(folder: Path) -> list[tuple[int, Path]]:
    """Return the complete checkpoints in a run folder with their step counts, newest first."""
    found = [index.parent for index in (folder / FOLDER).glob(f"*/{INDEX}")]
    return sorted(((int(path.name), path) for path in found if path.name.isdigit()), reverse=True)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return every tensor in full, and the other contents of the checkpoint.

    Raise `ValueError` if it is damaged.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    about = read_json(path / INDEX)
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        raise ValueError(f"{INDEX} has no schema {SCHEMA}")
    for name, sha256 in about["files"].items():
        file = path / Path(name).name
        if not file.is_file() or file_sha256(file) != sha256:
            raise ValueError(f"{name} is missing or does not match its checksum")
    with _plain_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this process is alone
        storage = HuggingFaceStorageReader(str(path))
        known = storage.read_metadata().state_dict_metadata
        state = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in known.items()}  # type: ignore[union-attr]
        load(state, storage_reader=storage, no_dist=True)
    return {name: t.reshape(()) if name in about["single"] else t for name, t in state.items()}, about


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Convert torch's error, which does not derive from `Exception`, to `OSError`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        causes = "; ".join(f"rank {rank}: {cause[0]}" for rank, cause in error.failures.items())
        raise OSError(f"{path} cannot be written or read: {shorten(causes)}") from error
