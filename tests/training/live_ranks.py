"""Ranks that train on one language model: `python -m tests.training.live_ranks OUT MODEL TEXT`."""

import sys
from pathlib import Path

import torch

from osae.config import alter
from osae.data.harvest import Harvest
from osae.data.source import Live, LiveRows
from osae.data.text import TextFiles
from osae.model import SAE
from osae.ranks import ALONE, Mesh, joined, open_mesh
from osae.recipes import RECIPES, Task
from osae.training import feeding
from osae.training.loop import train
from osae.training.member import Member

TASK = Task(width=16, units=24, k=3, samples=40 * 42, batch=42)


def open_live(model: str, text: str, mesh: Mesh = ALONE) -> tuple[LiveRows, list[int]]:
    """Some blocks of a few batches each, and a list that gets the tokens of every batch of this process."""
    harvest = Harvest(model, TextFiles((text,)), tokens=600, layer=2, context=12, block=150)
    live, seen = LiveRows(Live(harvest, batch_tokens=60), "cpu", mesh.everyone.apart()), []
    real = live.lm.activations
    live.lm.activations = lambda ids: (seen.append(ids.numel()), real(ids))[1]
    return live, seen


def train_live(source: LiveRows, mesh: Mesh = ALONE) -> SAE:
    """An SAE after a few passes over the blocks."""
    made = alter(RECIPES["topk"](TASK), {"adam.eps": 1e-3, "lr.peak": 4e-3})
    member = Member(made, 0, source.block(0), mesh=mesh)
    train([member], source)
    return member.finish()


if __name__ == "__main__":
    _, out, model, text = sys.argv
    torch.set_num_threads(1)
    feeding.runs_beside = lambda device: True  # as with a GPU: a thread fetches the blocks
    with joined():
        mesh = open_mesh()
        source, seen = open_live(model, text, mesh)
        blocks = [source.block(index) for index in range(source.count)]
        found = {"blocks": blocks, "seen": list(seen)}
        sae = train_live(source, mesh)
        torch.save(found | {"decoder": sae.decoder.detach()}, Path(out) / f"{mesh.everyone.rank}.pt")
