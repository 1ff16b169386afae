"""The numbers of the paper, as printed there."""

# mean, standard deviation
TABLE_1 = {
    "topk": {
        "label": "Vanilla SAE (top-m)",
        "stability_pairs": (0.572, 0.00964),
        "stability_truth": (0.479, 0.0104),
        "orderedness_truth": (0.0162, 0.128),
        "mse": (0.0257, 0.000841),
    },
    "matryoshka-fixed": {
        "label": "Fixed MSAE",
        "stability_pairs": (0.538, 0.0114),
        "stability_truth": (0.502, 0.0160),
        "orderedness_truth": (0.119, 0.673),
        "mse": (0.0339, 0.00635),
    },
    "matryoshka-random": {
        "label": "Random MSAE",
        "stability_pairs": (0.531, 0.0150),
        "stability_truth": (0.480, 0.0106),
        "orderedness_truth": (0.0544, 0.0760),
        "mse": (0.0309, 0.00366),
    },
    "osae-paper": {
        "label": "O-SAE",
        "stability_pairs": (0.664, 0.0191),
        "stability_truth": (0.814, 0.0195),
        "orderedness_truth": (0.734, 0.0758),
        "mse": (0.00725, 0.000746),
    },
}

# what stitching the units of a larger SAE into a smaller one does, as shares of them
STITCHING = {
    "batchtopk": {"label": "BatchTopK", "novel": 0.738, "reconstruction": 0.212, "unchanged": 0.050},
    "matryoshka-random": {
        "label": "Random MSAE",
        "novel": 0.527,
        "reconstruction": 0.114,
        "unchanged": 0.359,
    },
    "osae-paper": {"label": "O-SAE", "novel": 0.338, "reconstruction": 0.648, "unchanged": 0.014},
}


def beside(method: str) -> dict | None:
    """The published row of a method of table 1, in the shape of our own rows; None if there is none."""
    if method not in TABLE_1:
        return None
    row = TABLE_1[method]
    numbers = {key: {"mean": v[0], "std": v[1]} for key, v in row.items() if key != "label"}
    return {"label": row["label"], **numbers}
