"""Language models of a few thousand random weights, saved as transformers saves them, and text for them."""

import json
import random
from pathlib import Path

import torch

WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = {"<unk>": 0, "<s>": 1} | {word: number for number, word in enumerate(WORDS, 2)}
BLOCKS = 3
COMMON = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": BLOCKS, "num_attention_heads": 2}
COMMON |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": None, "max_position_embeddings": 64}
NARROW = {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8}
KINDS = {
    "llama": COMMON | NARROW,
    "gpt_neox": COMMON | {"intermediate_size": 32},
    "gpt2": COMMON,
    "gemma2": COMMON | NARROW | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "opt": COMMON | {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "bloom": {key: value for key, value in COMMON.items() if key != "max_position_embeddings"},
    "qwen2": COMMON | NARROW,
}


def saved_model(folder: Path, kind: str = "llama", *, begins: bool = False, scale: float = 1.0) -> Path:
    """A model of this kind and its tokenizer in the folder; if it `begins`, with a BOS token first."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **KINDS[kind]))
    with torch.no_grad():
        for weight in model.parameters():  # far from zero, so that every block changes the stream
            weight.add_(0.2 * torch.randn(weight.shape))
        model.get_input_embeddings().weight.mul_(scale)
    model.save_pretrained(folder)
    save_tokenizer(folder, begins=begins)
    return folder


def save_tokenizer(folder: Path, *, begins: bool = False, bos: bool = True) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if begins:
        words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])  # pyright: ignore
    special = {"bos_token": "<s>"} if bos else {}
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special).save_pretrained(folder)


def documents(count: int, *, longest: int = 40, seed: int = 0) -> list[list[int]]:
    """Ids of documents of all lengths, none of them special."""
    draw = random.Random(seed)
    return [[draw.randrange(2, 62) for _ in range(draw.randrange(longest + 1))] for _ in range(count)]


def words_of(ids: list[int]) -> str:
    return " ".join(WORDS[number - 2] for number in ids)


def saved_text(path: Path, ids: list[list[int]]) -> Path:
    path.write_text("".join(json.dumps({"text": words_of(each)}) + "\n" for each in ids))
    return path
