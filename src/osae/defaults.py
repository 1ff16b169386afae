"""Default sizes and choices that several packages share. Does not need torch."""

from typing import Literal, get_args

BATCH = 512  # activations in a training step; docs/consistency.md has the reason
LARGE_BATCH = 2048  # of the language-model settings
GROUPS = 5  # of Matryoshka's prefixes
CONTEXT = 128  # tokens in a context
PREDICTIONS = 20_000  # to average the cross-entropy over
FOUND = 0.5  # a unit that is found in more than this share of other SAEs is reproducible
SKIP = 1  # first positions of a context, which are left out

# of `compare`: what it compares, what it does with dead units, and how it draws chance levels
On = Literal["decoder", "encoder"]
Dead = Literal["keep", "drop"]
Chance = Literal["fitted", "isotropic"]

DType = Literal["float16", "bfloat16", "float32"]  # of activations on disk, the default first
Keep = Literal["reproducible"]  # which units `prune` keeps
Precision = Literal["fp32", "tf32", "bf16"]  # of products with an encoder, the default first
PRECISIONS = get_args(Precision)
