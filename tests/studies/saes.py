"""SAEs and activations with known answers, for the tests of studies and commands."""

import json

import numpy as np
import torch

from osae.data.worlds import SparseWorld
from osae.model import SAE, SAEConfig
from osae.sparsify import TopK

WORLD = SparseWorld(width=24, units=20, active=2, zipf=0.8, samples=600)
WORDS = ("the", "cat", "sees", "a", "dog", "and", "runs", "home", "old", "blue")


def noise(units, width, seed):
    """Return a matrix of Gaussian noise."""
    return torch.randn(units, width, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def make_sae(atoms, sparsifier=None):
    """Return an SAE with these atoms as decoder and encoder."""
    units, width = atoms.shape
    sae = SAE(SAEConfig(width, units, sparsifier or TopK(min(2, units))))
    sae.decoder.copy_(atoms)
    sae.encoder.copy_(atoms)
    return sae


def save_sae(folder, atoms, sparsifier=None):
    """Save an SAE with these atoms, and return its folder."""
    make_sae(atoms, sparsifier).save(folder)
    return folder


def make_model(folder, *, width=16, seed=0):
    """Save a random Llama that reads words, and return its folder."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    known = {word: place for place, word in enumerate(("<unk>", *WORDS))}
    words = Tokenizer(WordLevel(known, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(known),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_text(path, documents, seed):
    """Write random documents to a JSONL file, and return its path."""
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, size=generator.integers(2, 30))) for _ in range(documents)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path
