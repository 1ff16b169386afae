"""Batches of contexts: every context once, within bounds, padded as little as neighbours in length need."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from osae.data.contexts import group_contexts, pad_contexts

LENGTHS = st.lists(st.integers(1, 30), max_size=40)


@given(LENGTHS, st.integers(1, 100))
def test_groups_hold_every_context_once_and_no_more_tokens_than_allowed(lengths, most):
    contexts = [np.arange(length, dtype=np.int32) for length in lengths]
    groups = list(group_contexts(contexts, most))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    by_length = [lengths[index] for group in groups for index in group]
    assert by_length == sorted(lengths)
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[index] for index in group) <= most
    for group, after in pairwise(groups):
        assert (len(group) + 1) * lengths[after[0]] > most  # it was full


@given(LENGTHS.filter(bool))
def test_padding_is_zeros_on_the_right(lengths):
    contexts = [np.arange(1, length + 1, dtype=np.int32) for length in lengths]
    ids = pad_contexts(contexts)
    assert ids.shape == (len(lengths), max(lengths))
    for row, context in zip(ids, contexts, strict=True):
        assert row.tolist() == context.tolist() + [0] * (ids.shape[1] - len(context))
