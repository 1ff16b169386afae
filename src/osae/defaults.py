"""Sizes that hold unless others are given, for the rooms that share them. Needs no torch."""

BATCH = 2048  # activations in a training step
GROUPS = 5  # of Matryoshka's prefixes
CONTEXT = 128  # tokens in a context
SKIP = 1  # first positions of a context, which are left out
