"""Several processes share the work of a language model, and train as one process does."""

import torch

from tests.data.tiny import documents, saved_model, saved_text
from tests.training.live_ranks import open_live, train_live
from tests.training.ranks import launch


def test_three_processes_share_the_batches_of_a_model_and_get_the_blocks_of_one(tmp_path):
    model, text = str(saved_model(tmp_path / "model")), str(saved_text(tmp_path / "a.jsonl", documents(80)))
    source, seen = open_live(model, text)
    blocks = [source.block(index) for index in range(source.count)]
    launch(3, "tests.training.live_ranks", str(tmp_path), model, text)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for each in found:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(blocks, each["blocks"], strict=True))
    assert sorted(tokens for each in found for tokens in each["seen"]) == sorted(seen)  # each batch once
    assert max(len(each["seen"]) for each in found) <= len(seen) / 3 + source.count
    alone = train_live(source).decoder.detach()
    assert all((each["decoder"] - alone).abs().max() < 3e-5 for each in found)
