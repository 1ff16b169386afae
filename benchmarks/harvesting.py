"""Does harvest keep the pace of the model?

    python -m benchmarks.harvesting --model MODEL --layer 10 --text FILE

In turns, a text is harvested from the beginning (read, tokenised, run through the model, shuffled, written
with its manifest), and its contexts are run through a model that has no blocks but those up to the layer,
with all batches ready beforehand and nothing done with what comes out. What is told is the median of the
ratios.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from torch import Tensor

from benchmarks.pipe import ROOT, kept
from osae.data.harvest import BATCH_TOKENS, Contexts, Harvest, batch_contexts, harvest, open_model
from osae.data.lm import LanguageModel, _blocks
from osae.data.shards import Shards
from osae.data.text import TextFiles


@contextmanager
def cut(lm: LanguageModel, layer: int) -> Iterator[Any]:
    """The model's decoder without the blocks from the layer on."""
    blocks, decoder = _blocks(lm.model), lm.model.get_decoder()
    (name,) = [name for name, part in decoder.named_children() if part is blocks]
    setattr(decoder, name, blocks[:layer])
    try:
        yield decoder
    finally:
        setattr(decoder, name, blocks)


@torch.no_grad()
def bare(lm: LanguageModel, layer: int, batches: Sequence[Tensor]) -> float:
    """Seconds to run the batches through the blocks up to the layer."""
    with cut(lm, layer) as decoder:
        began = time.perf_counter()
        for ids in batches:
            decoder(input_ids=ids.to(lm.device), use_cache=False).last_hidden_state.cpu()
        return time.perf_counter() - began


def measured(spec: Harvest, rounds: int, batch_tokens: int = BATCH_TOKENS, device: str = "cpu") -> dict:
    """The pace of harvest and of the bare model, in rows a second, and harvest's share of the bare pace."""
    if spec.layer is None:
        raise ValueError("a bare pass needs a layer: give --layer.")
    lm = open_model(spec, device)
    paces: dict[str, list[float]] = {"harvest": [], "bare": []}
    rows = 0
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):  # the first warms up, and shows which batches there are
            out = Path(folder) / str(turn)
            began = time.perf_counter()
            harvest(spec, out, batch_tokens=batch_tokens, lm=lm)
            seconds = time.perf_counter() - began
            contexts = Contexts(**load_file(out / "contexts.safetensors"))
            rows = Shards(out).rows
            batches = [
                torch.from_numpy(ids).long()
                for index in range(len(contexts.blocks) - 1)
                for ids, _ in batch_contexts(contexts, index, batch_tokens)
            ]
            alone = bare(lm, spec.layer, batches)
            if turn:
                paces["harvest"].append(rows / seconds)
                paces["bare"].append(rows / alone)
    shares = [ours / theirs for ours, theirs in zip(*paces.values(), strict=True)]
    return {
        "rows": rows,
        "layer": spec.layer,
        "batch_tokens": batch_tokens,
        "rows_a_second": paces,
        "shares": shares,
        "share": statistics.median(shares),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.harvesting", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", required=True, metavar="ID_OR_FOLDER[:FILE.gguf]")
    parser.add_argument("--layer", type=int, required=True, metavar="N")
    parser.add_argument("--text", required=True, metavar="FILES", help="a file or a pattern")
    parser.add_argument("--tokens", type=int, default=32_768, metavar="N", help="rows of a turn (32768)")
    parser.add_argument("--context", type=int, default=128, metavar="N", help="tokens of a context (128)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each (3)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps (cpu)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/bench", metavar="DIR")
    asked = parser.parse_args(arguments)
    spec = Harvest(
        asked.model, TextFiles((asked.text,)), asked.tokens, layer=asked.layer, context=asked.context
    )
    found = measured(spec, asked.rounds, device=asked.device)
    for name, paces in found["rows_a_second"].items():
        print(f"{name}: {', '.join(f'{pace:,.0f}' for pace in paces)} rows a second")
    print(f"harvest runs at {found['share']:.1%} of the bare pass")
    kept(found, asked.out / "harvesting.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
