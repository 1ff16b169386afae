"""Parts of activations share no document and have their shares of the rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.data.documents import read_documents, split_documents, write_parts
from osae.data.shards import Shards, write_shards


def shards_of(folder, lengths, seed=0, per_shard=50):
    """Documents of these lengths, one column with the number of the document, rows in random order."""
    documents = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    documents = documents[torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))]
    rows = torch.stack([documents.float(), torch.arange(len(documents)).float()], 1)
    block = {"activations": rows, "documents": documents.int()}
    return write_shards(folder, [block], rows_per_shard=per_shard)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=20, max_size=60),
    st.lists(st.floats(0.2, 1.0), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_parts_have_all_rows_no_document_twice_and_their_shares(tmp_path_factory, lengths, shares, seed):
    shards = shards_of(tmp_path_factory.mktemp("acts"), lengths, seed)
    parts = split_documents(shards, shares)
    assert torch.cat([part.rows for part in parts]).sort().values.equal(torch.arange(shards.rows))
    documents = read_documents(shards)
    found = [set(documents[part.rows].tolist()) for part in parts]
    assert sum(map(len, found)) == len(lengths)  # so no document is in two
    for part, share in zip(parts, shares, strict=True):
        wanted = share / sum(shares) * shards.rows
        assert abs(len(part.rows) - wanted) <= 9  # a document at each end, of which half may be too much
        assert part.read(0, len(part.rows))[:, 1].long().equal(part.rows)


def test_a_mixture_is_written_in_its_shares_slice_by_slice(tmp_path, monkeypatch):
    monkeypatch.setattr("osae.data.documents.SLICE", 100)
    one, other = (shards_of(tmp_path / name, [5] * 200) for name in ("one", "other"))
    (first,), (second,) = (split_documents(shards, [1.0]) for shards in (one, other))
    mixed = write_parts(tmp_path / "mixed", [first, second], [0.75, 0.25])
    assert mixed.rows == 1333
    assert [part["rows"] for part in mixed.manifest["mixture"]] == [1000, 333]
    again = write_parts(tmp_path / "mixed", [first, second], [0.75, 0.25])
    assert again.provenance() == mixed.provenance()


def test_rows_without_documents_and_too_few_documents_are_refused(tmp_path):
    bare = write_shards(tmp_path / "bare", [torch.randn(10, 2)])
    with pytest.raises(ValueError, match="does not record the document of each row"):
        split_documents(bare, [1, 1])
    few = shards_of(tmp_path / "few", [10])
    with pytest.raises(ValueError, match="has 1 documents, too few for 2 parts"):
        split_documents(Shards(few.path), [1, 1])
