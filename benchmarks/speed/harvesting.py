"""Does harvest keep up with the model?

    python -m benchmarks.speed.harvesting --model MODEL --layer 10 --text FILE

Alternates between harvesting a text from scratch (reading, tokenising, running the model, shuffling, writing
with a manifest) and running its contexts through a model with only the blocks up to the layer, with all
batches prepared beforehand and the output discarded. The result is the median of the ratios.
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

from benchmarks.speed.results import add_out, write_results
from osae.data.harvest import BATCH_TOKENS, Contexts, Harvest, batch_contexts, harvest, open_model
from osae.data.lm import LanguageModel, _blocks
from osae.data.shards import Shards
from osae.data.text import TextFiles


@contextmanager
def cut_model(lm: LanguageModel, layer: int) -> Iterator[Any]:
    """Yield the model's decoder without the blocks from the layer on."""
    blocks, decoder = _blocks(lm.model), lm.model.get_decoder()
    (name,) = [name for name, part in decoder.named_children() if part is blocks]
    setattr(decoder, name, blocks[:layer])
    try:
        yield decoder
    finally:
        setattr(decoder, name, blocks)


@torch.no_grad()
def time_bare_pass(lm: LanguageModel, layer: int, batches: Sequence[Tensor]) -> float:
    """Return the seconds it takes to run the batches through the blocks up to the layer."""
    with cut_model(lm, layer) as decoder:
        began = time.perf_counter()
        for ids in batches:
            decoder(input_ids=ids.to(lm.device), use_cache=False).last_hidden_state.cpu()
        return time.perf_counter() - began


def measure_pace(spec: Harvest, rounds: int, batch_tokens: int = BATCH_TOKENS, device: str = "cpu") -> dict:
    """Return the rows per second of harvest and of the bare model, and the ratio of the two."""
    if spec.layer is None:
        raise ValueError("a bare pass needs a layer: give --layer.")
    lm = open_model(spec, device)
    paces: dict[str, list[float]] = {"harvest": [], "bare": []}
    rows = 0
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):  # the first is a warm-up
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
            alone = time_bare_pass(lm, spec.layer, batches)
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
    """Run the benchmark, print its numbers and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.harvesting", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", required=True, metavar="ID_OR_FOLDER[:FILE.gguf]")
    parser.add_argument("--layer", type=int, required=True, metavar="N")
    parser.add_argument("--text", required=True, metavar="FILES", help="a file or a pattern")
    parser.add_argument(
        "--tokens", type=int, default=32_768, metavar="N", help="number of rows per round (32768)"
    )
    parser.add_argument(
        "--context", type=int, default=128, metavar="N", help="number of tokens in a context (128)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (3)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps (cpu)")
    add_out(parser)
    asked = parser.parse_args(arguments)
    spec = Harvest(
        asked.model, TextFiles((asked.text,)), asked.tokens, layer=asked.layer, context=asked.context
    )
    found = measure_pace(spec, asked.rounds, device=asked.device)
    for name, paces in found["rows_a_second"].items():
        print(f"{name}: {', '.join(f'{pace:,.0f}' for pace in paces)} rows per second")
    print(f"harvest runs at {found['share']:.1%} of the bare pass")
    write_results(found, asked.out / "harvesting.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
