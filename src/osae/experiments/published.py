"""The numbers published in the paper."""

from osae.experiments.methods import BATCHTOPK, MATRYOSHKA_FIXED, MATRYOSHKA_RANDOM, OSAE_PAPER, TOPK
from osae.results.base import Interval
from osae.results.experiment import PublishedRow

# table 1: mean and standard deviation
TABLE_1 = {
    TOPK: PublishedRow(
        "Vanilla SAE (top-m)",
        {
            "stability_pairs": Interval(0.572, 0.00964),
            "stability_truth": Interval(0.479, 0.0104),
            "orderedness_truth": Interval(0.0162, 0.128),
            "mse": Interval(0.0257, 0.000841),
        },
    ),
    MATRYOSHKA_FIXED: PublishedRow(
        "Fixed MSAE",
        {
            "stability_pairs": Interval(0.538, 0.0114),
            "stability_truth": Interval(0.502, 0.0160),
            "orderedness_truth": Interval(0.119, 0.673),
            "mse": Interval(0.0339, 0.00635),
        },
    ),
    MATRYOSHKA_RANDOM: PublishedRow(
        "Random MSAE",
        {
            "stability_pairs": Interval(0.531, 0.0150),
            "stability_truth": Interval(0.480, 0.0106),
            "orderedness_truth": Interval(0.0544, 0.0760),
            "mse": Interval(0.0309, 0.00366),
        },
    ),
    OSAE_PAPER: PublishedRow(
        "O-SAE",
        {
            "stability_pairs": Interval(0.664, 0.0191),
            "stability_truth": Interval(0.814, 0.0195),
            "orderedness_truth": Interval(0.734, 0.0758),
            "mse": Interval(0.00725, 0.000746),
        },
    ),
}
TABLE_1_MEASURES = tuple(TABLE_1[OSAE_PAPER].measures)

# shares of units by their effect when stitched from a larger SAE into a smaller one
STITCHING = {
    BATCHTOPK: PublishedRow("BatchTopK", {"novel": 0.738, "reconstruction": 0.212, "unchanged": 0.050}),
    MATRYOSHKA_RANDOM: PublishedRow(
        "Random MSAE", {"novel": 0.527, "reconstruction": 0.114, "unchanged": 0.359}
    ),
    OSAE_PAPER: PublishedRow("O-SAE", {"novel": 0.338, "reconstruction": 0.648, "unchanged": 0.014}),
}
