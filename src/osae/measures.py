"""The table of measures: key, titles, meaning, which direction is better, and how to format numbers.

Tables in the terminal, Markdown, CSV and JSON files, HTML pages, figures, claims and the documentation all
use this table. Nothing here needs torch. To add a measure, add an entry here and a function that computes it
(see `osae.studies`).
"""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

MISSING = "–"
ABOVE = (0.5, 0.7, 0.9)  # cosines above which the share of matched units is reported

Scope = Literal[
    "pair",
    "prefix",
    "sae",
    "reconstruction",
    "curve",
    "cross_entropy",
    "method",
    "unit",
    "unit_score",
    "unit_contexts",
    "contexts",
    "log",
    "stitching",
    "stitching_firing",
]
Listing = Literal["main", "activations", "on request"]  # which table of methods or units shows a measure


@dataclass(frozen=True)
class Measure:
    """A measure: its key in results, its names, and how to format its numbers.

    `title` heads a table column, `phrase` labels an axis, `meaning` is a sentence for legends and the
    documentation. `better` says which direction is better, if either is. `fixed` writes `digits` decimals;
    `significant` writes `digits` significant digits, with an exponent below 0.001 and from 100,000 on.
    `chance` says whether it has a chance level. `of` says what it is a measure of; a "curve" runs over the
    prefixes of one SAE. `listing` says which table of methods or units shows it; "on request" is for tables
    that select it by key.
    """

    key: str
    title: str
    phrase: str
    meaning: str = ""
    better: Literal["high", "low", ""] = ""
    digits: int = 3
    format: Literal["fixed", "significant"] = "fixed"
    chance: bool = False
    of: tuple[Scope, ...] = ()
    listing: Listing = "main"

    @property
    def direction(self) -> str:
        """Which direction is better, in words; empty if neither is."""
        return {"high": "higher is better", "low": "lower is better"}.get(self.better, "")

    @property
    def arrow(self) -> str:
        """Which direction is better, as an arrow; empty if neither is."""
        return {"high": "↑", "low": "↓"}.get(self.better, "")

    @property
    def sign(self) -> int:
        """The factor by which larger differences are better: -1 if lower numbers are better, otherwise 1."""
        return -1 if self.better == "low" else 1

    def text(self, value: float | None) -> str:
        """Return the number as text; an en dash if it is missing."""
        if value is None or not math.isfinite(value):
            return MISSING
        if self.format == "significant":
            return significant(value, self.digits)
        return fixed(value, self.digits)

    def spread(self, std: float | None) -> str:
        """Return a standard deviation as text, with as many decimals as `text`; empty if it is missing."""
        if std is None or not math.isfinite(std):
            return ""
        if self.format == "significant":
            return significant(std, max(self.digits - 1, 1))
        text = fixed(std, self.digits)
        return f"<{10.0**-self.digits:.{self.digits}f}" if std > 0 and float(text) == 0 else text

    def ahead(self, ours: float, theirs: float) -> float:
        """Return by how much the first number is better than the second; negative if it is worse."""
        return self.sign * (ours - theirs)


def fixed(value: float, digits: int) -> str:
    """Return the number with that many decimals, and never a negative zero."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def significant(value: float, digits: int) -> str:
    """Return the number with that many significant digits: 0.0257, but 2.53e-04 and 1.20e+06."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # after rounding: 0.9999 counts as 1.00
    if not -3 <= exponent < 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


MEASURES: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        # --- agreement of two dictionaries ---
        Measure(
            "stability",
            "Stab",
            "stability",
            "Mean cosine of matched units under the best one-to-one matching.",
            better="high",
            chance=True,
            of=("pair", "prefix", "method"),
        ),
        Measure(
            "orderedness",
            "Ord",
            "orderedness",
            "Spearman correlation of the matched units' positions.",
            better="high",
            chance=True,
            of=("pair", "prefix", "method"),
        ),
        *(
            Measure(
                f"above_{level}",
                f"cosine > {level}",
                f"share of units matched above {level}",
                f"Share of matched units whose cosine exceeds {level}.",
                better="high",
                of=("pair",),
            )
            for level in ABOVE
        ),
        Measure(
            "stability_firing",
            "Stab firing",
            "stability of units that fire",
            "Stability among the units that fire in more than one sample in 10,000.",
            better="high",
            of=("method",),
        ),
        Measure(
            "mcc",
            "MCC",
            "mean matched |cosine|",
            "Mean absolute cosine of matched units under the one-to-one matching that maximises it.",
            better="high",
            of=("method",),
        ),
        Measure(
            "f1",
            "F1",
            "F1 of units as detectors",
            "Mean F1 score of units, each as a detector of its nearest true atom.",
            better="high",
            of=("method",),
        ),
        *(
            Measure(
                f"ev_{part}",
                f"EV {part}",
                f"explained variance of the first {part} of the units",
                f"Explained variance of the first {part} of the units alone.",
                better="high",
                of=("method",),
            )
            for part in ("quarter", "half")
        ),
        Measure(
            "stream_stability",
            "Stab Z",
            "stability of activations",
            "Mean Pearson correlation of the activations of matched units, under the matching that maximises "
            "it.",
            better="high",
            chance=True,
            of=("pair", "method"),
            listing="activations",
        ),
        Measure(
            "stream_orderedness",
            "Ord Z",
            "orderedness of activations",
            "Spearman correlation of the positions of units matched by their activations.",
            better="high",
            chance=True,
            of=("pair", "method"),
            listing="activations",
        ),
        Measure(
            "stability_of_full",
            "Stab of full",
            "stability within the matching of all units",
            "Mean cosine of the prefix's units in the matching of all units.",
            better="high",
            of=("prefix",),
        ),
        Measure(
            "orderedness_of_full",
            "Ord of full",
            "orderedness within the matching of all units",
            "Spearman correlation of the positions of the prefix's units in the matching of all units.",
            better="high",
            of=("prefix",),
        ),
        # --- one SAE on activations ---
        Measure("units", "Units", "units", "Number of units, K.", digits=0, of=("sae",)),
        Measure(
            "moved",
            "Moved",
            "units that moved",
            "Number of units whose position changed.",
            digits=0,
            of=("sae",),
        ),
        Measure(
            "rank_correlation",
            "Rank correlation",
            "rank correlation of old and new positions",
            "Spearman correlation of the units' old and new positions.",
            of=("sae",),
        ),
        Measure(
            "zero_units",
            "Zero",
            "units without a direction",
            "Number of units whose atom is zero.",
            digits=0,
            of=("sae",),
        ),
        Measure(
            "dead_units",
            "Dead",
            "units that never fire on the activations",
            "Number of units that never fire on the activations.",
            digits=0,
            of=("sae",),
        ),
        Measure(
            "prefix",
            "Loss",
            "loss of the prefixes",
            "Ordered loss of the batch: the errors of all prefixes, weighted.",
            better="low",
            format="significant",
            of=("log",),
        ),
        Measure(
            "mse",
            "MSE",
            "mean squared error",
            "Mean squared error over samples and coordinates.",
            better="low",
            format="significant",
            of=("reconstruction", "curve", "method"),
        ),
        Measure(
            "explained_variance",
            "EV",
            "explained variance",
            "Share of the variance that the reconstruction explains.",
            better="high",
            of=("reconstruction", "curve", "method", "log"),
        ),
        Measure(
            "l0",
            "L0",
            "active units per sample",
            "Mean number of units that fire in a sample.",
            digits=2,
            of=("reconstruction", "method", "contexts", "log"),
            listing="on request",
        ),
        Measure(
            "inactive",
            "Inactive",
            "share of inactive units",
            "Share of the units that have not fired during the last thousand steps of training.",
            of=("log",),
        ),
        Measure(
            "dead",
            "Dead",
            "share of dead units",
            "Share of the units that never fire on these samples.",
            better="low",
            of=("reconstruction", "method", "contexts"),
        ),
        Measure(
            "unused",
            "Unused",
            "share of unused units in a group",
            "Share of units that never fire on held-out text, in the group that ends at this position.",
            of=("method",),
        ),
        Measure(
            "spliced",
            "CE",
            "cross-entropy with the SAE spliced in",
            "Cross-entropy of the language model with the reconstruction in place of the activations.",
            better="low",
            of=("cross_entropy",),
        ),
        Measure(
            "recovered",
            "CE recovered",
            "share of the cross-entropy recovered",
            "Share of the cross-entropy recovered: 1 is as good as the model itself, 0 as bad as zeros.",
            better="high",
            of=("cross_entropy",),
        ),
        # --- methods on a world with known atoms ---
        Measure(
            "fifr",
            "FIFR",
            "FIFR error",
            "Relative error of each true feature's component, averaged over features.",
            better="low",
            format="significant",
            of=("method",),
        ),
        Measure(
            "seconds", "Seconds", "seconds of training", "Seconds of training.", digits=0, of=("method",)
        ),
        Measure(
            "least_cosine",
            "Least |cosine|",
            "least |cosine| of a unit in its position",
            "Smallest |cosine| of a unit with the principal direction of the same rank.",
            better="high",
            digits=4,
            of=("method",),
        ),
        Measure(
            "cosine_in_place",
            "Mean |cosine|",
            "mean |cosine| of a unit in its position",
            "Mean |cosine| of a unit with the principal direction of the same rank.",
            better="high",
            digits=4,
            of=("method",),
        ),
        Measure(
            "least_possible_mse",
            "Least possible MSE",
            "least possible error",
            "Mean squared error of the best linear reconstruction with the same number of units.",
            format="significant",
            of=("method",),
        ),
        # --- minimisers of the nested loss on small worlds, and what the worlds' atoms satisfy ---
        Measure(
            "nested_loss",
            "L_ND",
            "nested loss",
            "Loss of all prefixes, weighted by p, as a share of the data's mean squared norm.",
            digits=4,
            of=("method",),
        ),
        Measure(
            "full_loss",
            "L_K",
            "full loss",
            "Loss of the whole dictionary, as a share of the data's mean squared norm.",
            digits=4,
            of=("method",),
        ),
        Measure(
            "nested_change",
            "L_ND - L_ND truth",
            "change of the nested loss",
            "Nested loss minus the nested loss of the truth.",
            digits=4,
            of=("method",),
        ),
        Measure(
            "code_gradient",
            "Code gradient",
            "gradient with respect to the codes at the truth",
            "Norm of the gradient of the nested loss with respect to a sample's code, at the truth (root "
            "mean square).",
            digits=4,
            of=("method",),
        ),
        Measure(
            "atom_gradient",
            "Atom gradient",
            "gradient with respect to the atoms at the truth",
            "Norm of the gradient of the nested loss with respect to the unit-norm atoms, at the truth.",
            digits=4,
            of=("method",),
        ),
        Measure(
            "leaves_truth",
            "Leaves truth",
            "share of worlds whose minimiser is not the truth",
            "Share of worlds in which a point with a higher full loss has a lower nested loss than the "
            "truth.",
            digits=2,
            of=("method",),
        ),
        Measure(
            "tied_orders",
            "Best orders",
            "number of orders with the least loss",
            "Number of orders with the least nested loss.",
            digits=0,
            of=("method",),
        ),
        Measure(
            "best_order",
            "Best",
            "share of worlds with this best order",
            "Share of worlds in which no order has a lower nested loss than this one.",
            digits=2,
            of=("method",),
        ),
        Measure(
            "best_fixed",
            "Best",
            "share of worlds with this best order of the true codes",
            "Share of worlds in which, with the true codes, no order has a lower nested loss than this one.",
            digits=2,
            of=("method",),
        ),
        Measure(
            "swaps",
            "Swaps",
            "swaps that lower the loss",
            "Number of swaps of neighbours that would lower the minimiser's nested loss.",
            digits=0,
            of=("method",),
        ),
        Measure("active_atoms", "m", "active atoms", "Number of active atoms, m.", digits=0, of=("method",)),
        Measure(
            "coherence",
            "Coherence",
            "coherence",
            "Largest |cosine| of two atoms.",
            of=("method",),
        ),
        Measure(
            "coherence_limit",
            "below 1/(2m-1)",
            "required coherence",
            "Coherence below which m-sparse codes are unique, 1/(2m-1).",
            of=("method",),
        ),
        Measure(
            "spark_bound",
            "Spark by coherence",
            "lower bound on the spark",
            "Lower bound on the spark from the coherence.",
            digits=1,
            of=("method",),
        ),
        Measure(
            "general_spark",
            "Spark in general position",
            "spark in general position",
            "Spark of atoms in general position, rank + 1.",
            digits=0,
            of=("method",),
        ),
        Measure(
            "spark_limit",
            "above 2m",
            "required spark",
            "Spark that m-sparse codes must exceed to be unique, 2m (at most K).",
            digits=0,
            of=("method",),
        ),
        Measure(
            "isometry",
            "RIP m",
            "restricted isometry constant of order m",
            "Restricted isometry constant of order m, from all sets of atoms or, if there are too many, a "
            "lower bound from 2000 of them.",
            of=("method",),
        ),
        Measure(
            "isometry_double",
            "RIP 2m",
            "restricted isometry constant of order 2m",
            "Restricted isometry constant of order 2m, at most K; a value below 1 is sufficient for "
            "uniqueness.",
            of=("method",),
        ),
        # --- whether the scores of units are right ---
        Measure(
            "true_units",
            "True",
            "share of true units",
            "Share of units that have the direction of a true feature.",
            of=("method",),
        ),
        Measure(
            "auc",
            "AUC",
            "AUC of reproducibility",
            "Probability that a true unit is more reproducible than a false one; ties count half.",
            better="high",
            of=("method",),
        ),
        Measure(
            "auc_support",
            "AUC, support",
            "AUC of support",
            "The same for support, which grades how close the nearest units come to being the same.",
            better="high",
            of=("method",),
        ),
        Measure(
            "auc_nearest",
            "AUC, nearest",
            "AUC of the nearest cosine",
            "The same for the mean cosine with the nearest units.",
            better="high",
            of=("method",),
        ),
        Measure(
            "auc_matched",
            "AUC, matched",
            "AUC of the matched cosine",
            "The same for the mean cosine with matched units.",
            better="high",
            of=("method",),
        ),
        Measure(
            "found_units",
            "Found again",
            "mean reproducibility",
            "Mean reproducibility of the units.",
            of=("method",),
        ),
        Measure(
            "calibration_error",
            "Calibration error",
            "expected calibration error",
            "Mean gap between the predicted and the actual share of units that a held-out run finds; each "
            "run is held out in turn.",
            better="low",
            of=("method",),
        ),
        Measure(
            "found_next_never",
            "Least expected",
            "share of the least expected units found",
            "Share of the least expected units that the held-out run finds.",
            of=("method",),
        ),
        Measure(
            "found_next_always",
            "Most expected",
            "share of the most expected units found",
            "Share of the most expected units that the held-out run finds.",
            of=("method",),
        ),
        Measure(
            "calibration_error_three",
            "From three runs",
            "expected calibration error of three runs",
            "The same if only three runs predict a fourth: mean over all ways to choose them.",
            better="low",
            of=("method",),
        ),
        Measure(
            "calibration_error_worst",
            "At worst",
            "largest calibration error of three runs",
            "The largest calibration error over all ways to choose three runs and a fourth.",
            better="low",
            of=("method",),
        ),
        Measure(
            "found_fourth",
            "Found by a fourth",
            "share found by a fourth run",
            "Of the units that three runs all have, the share that a fourth run finds: mean over all ways to "
            "choose the runs.",
            better="high",
            of=("method",),
        ),
        Measure(
            "binned_expected",
            "Expected",
            "expected share",
            "Mean share of further runs that are expected to find these units.",
            of=("method",),
        ),
        Measure(
            "binned_found",
            "Found",
            "share found by a held-out run",
            "Share of these units that the held-out run finds.",
            of=("method",),
        ),
        Measure(
            "binned_units",
            "Units",
            "units",
            "Number of these units, over all held-out runs.",
            digits=0,
            of=("method",),
        ),
        # --- units of a larger SAE in a smaller one ---
        Measure(
            "novel",
            "Novel",
            "share of units that lower the error",
            "Share of the larger SAE's units that lower the smaller one's error where they fire.",
            of=("method", "stitching"),
        ),
        Measure(
            "reconstruction",
            "Reconstruction",
            "share of units that raise the error",
            "Share of the larger SAE's units that raise the smaller one's error: it already covers them.",
            of=("method", "stitching"),
        ),
        Measure(
            "unchanged",
            "No change",
            "share of units that never fire",
            "Share of the larger SAE's units that never fire.",
            of=("method", "stitching"),
        ),
        Measure(
            "novel_of_firing",
            "Novel, of firing",
            "share of firing units that lower the error",
            "Share of the larger SAE's units that lower the smaller one's error, among those that fire.",
            of=("method", "stitching_firing"),
        ),
        Measure(
            "reconstruction_of_firing",
            "Reconstruction, of firing",
            "share of firing units that raise the error",
            "Share of the larger SAE's units that raise the smaller one's error, among those that fire.",
            of=("method", "stitching_firing"),
        ),
        Measure(
            "share_of_error",
            "Error removed",
            "share of the smaller SAE's error removed",
            "Share of the smaller SAE's squared error that the unit removes.",
            format="significant",
            of=("unit",),
        ),
        Measure(
            "nearest",
            "Nearest unit",
            "nearest unit of the smaller SAE",
            "Unit of the smaller SAE with the nearest atom.",
            digits=0,
            of=("unit",),
        ),
        Measure("cosine", "Its cosine", "cosine", "Cosine with that atom.", of=("unit",)),
        # --- a unit, over all other SAEs ---
        Measure(
            "found_in",
            "found in",
            "share of units found in that many SAEs",
            "Share of the units that are found again in that many of the other SAEs.",
            of=("sae",),
        ),
        Measure(
            "energy",
            "Energy",
            "explained energy",
            "Share of the data's squared norm, measured from the decoder bias, that the unit explains on its "
            "own.",
            format="significant",
            of=("unit_score",),
        ),
        Measure(
            "reproducibility",
            "Found again",
            "reproducibility",
            "Share of the other SAEs (of the same recipe, if there are any) in which the unit is found "
            "again.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "reproducibility_chance",
            "by chance",
            "reproducibility by chance",
            "Share of the SAEs in which units that fire as often as this one are found again once their "
            "nearest unit is removed.",
            of=("unit_score",),
        ),
        Measure(
            "support",
            "Support",
            "support by other SAEs",
            "A graded version of reproducibility: how close the nearest units of these SAEs come to being "
            "the same, 0.5 at the threshold, times the correlation of activations.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "expected",
            "Expected",
            "expected reproducibility",
            "Share of further training runs in which the unit is expected to be found again.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "across",
            "Across recipes",
            "reproducibility across recipes",
            "Share of the SAEs of other recipes in which the unit is found again.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "nearest_cosine",
            "Nearest cosine",
            "cosine of nearest units",
            "Mean cosine with the nearest units of the other SAEs.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "matched_cosine",
            "Matched cosine",
            "cosine of matched units",
            "Mean cosine with the unit's matches in the best one-to-one matchings.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "mutual",
            "Mutual",
            "share of mutual neighbours",
            "Share of the other SAEs in which the nearest unit has this one as its own nearest unit.",
            better="high",
            of=("unit_score",),
            listing="on request",
        ),
        Measure(
            "correlation",
            "Correlation",
            "correlation of activations",
            "Mean Pearson correlation of the activations of the unit and of the nearest units.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "matched_correlation",
            "Matched correlation",
            "correlation of units matched by activations",
            "Mean Pearson correlation of the activations of the unit and of its matches in the best "
            "one-to-one matchings by activations.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "encoder_cosine",
            "Encoder cosine",
            "cosine of the nearest units' encoders",
            "Mean cosine of the encoder rows of the unit and of the nearest units.",
            better="high",
            of=("unit_score",),
        ),
        Measure(
            "frequency",
            "Fires in",
            "share of samples in which the unit fires",
            "Share of the samples in which the unit fires.",
            format="significant",
            of=("unit", "unit_score"),
        ),
        Measure(
            "mean_activation",
            "Mean activation",
            "mean activation",
            "Mean activation of the unit where it fires.",
            format="significant",
            of=("unit_contexts",),
        ),
        Measure(
            "largest",
            "Largest",
            "largest activation",
            "Largest activation of the unit.",
            format="significant",
            of=("unit_contexts",),
        ),
        Measure(
            "gain",
            "Gain",
            "gain",
            "Share of the same norm that the unit explains in addition to the units before it in the "
            "canonical order.",
            format="significant",
            of=("unit_score",),
        ),
        Measure(
            "place",
            "Position",
            "position in the canonical order",
            "Position in the canonical order, in which each next unit lowers the error most; starts at 0.",
            digits=0,
            of=("unit_score",),
        ),
    )
}

# What a measure is compared with, as a suffix of its key: "stability_truth", "orderedness_pairs"
AGAINST = {
    "pairs": ("pairs", "across seeds"),
    "truth": ("truth", "to truth"),
    "frequency": ("by frequency", "by frequency"),
    "energy": ("by energy", "by energy"),
    "gain": ("by gain", "by gain"),
    "codes": ("best codes", "with the best codes"),
    "free": ("all free", "with everything free"),
    "texts": ("two texts", "of the same seed on two texts"),
    "start": ("own start", "with its own start"),
}


# suffixes of the columns with the chance level of each row: "stability_chance", "stability_isotropic"
CHANCE, ISOTROPIC = "chance", "isotropic"


def measure(key: str) -> Measure:
    """Return the measure for a key, which may be derived: "stability_truth", "orderedness_64".

    A key that is not in the table is turned into a title.
    """
    if key in MEASURES:
        return MEASURES[key]
    base, _, suffix = key.rpartition("_")
    if base in MEASURES and suffix in AGAINST:
        title, phrase = AGAINST[suffix]
        whole = MEASURES[base]
        return replace(whole, key=key, title=f"{whole.title} {title}", phrase=f"{whole.phrase} {phrase}")
    if base in MEASURES and suffix in (CHANCE, ISOTROPIC):
        return _chance_measure(MEASURES[base], suffix)
    if base in MEASURES and suffix.isdigit():
        whole = MEASURES[base]
        return replace(
            whole, key=key, title=f"{whole.title} {suffix}", phrase=f"{whole.phrase} at {suffix} units"
        )
    words = re.sub(r"[_-]+", " ", key).strip()
    return Measure(key, words.capitalize(), words, format="significant")


def _chance_measure(whole: Measure, suffix: str) -> Measure:
    """Return the chance level of a measure as a separate measure, formatted like the measure itself."""
    title, which = ("by chance", "unrelated") if suffix == CHANCE else ("isotropic", "isotropic random")
    phrase = f"{whole.phrase} of {which} dictionaries"
    meaning = f"The {whole.phrase} of {which} dictionaries of the same shape."
    key = f"{whole.key}_{suffix}"
    return replace(whole, key=key, title=title, phrase=phrase, meaning=meaning, better="", chance=False)


def measures_of(scope: Scope) -> tuple[Measure, ...]:
    """Return the measures of a scope, in the order of the table."""
    return tuple(entry for entry in MEASURES.values() if scope in entry.of)


def keys_of(scope: Scope) -> tuple[str, ...]:
    """Return the keys of the measures of a scope, in the order of the table."""
    return tuple(entry.key for entry in measures_of(scope))


AGREEMENT = tuple(entry.key for entry in measures_of("prefix") if entry.chance)  # stability, orderedness


def base_key(key: str) -> str:
    """Return the key without its suffix: "stability" for "stability_truth"."""
    base, _, suffix = key.rpartition("_")
    derived = suffix in AGAINST or suffix in (CHANCE, ISOTROPIC) or suffix.isdigit()
    return base if base in MEASURES and derived else key


def prefix_of(key: str) -> int | None:
    """Return the number of units of a measure of a prefix: 64 for "stability_64"; None for all others."""
    base, _, suffix = key.rpartition("_")
    return int(suffix) if base in MEASURES and suffix.isdigit() else None


def orderedness_spread(matched: int) -> float:
    """Return the standard deviation of the orderedness of unrelated dictionaries, by their matched pairs.

    Their mean is 0, except for a single pair, whose orderedness is 1 by definition.
    """
    return (matched - 1) ** -0.5 if matched > 1 else 0.0


def list_columns(keys: Iterable[str], listing: Listing) -> tuple[str, ...]:
    """Return the keys that a table of methods shows, in the order of the table of measures."""
    shown = {entry.key: place for place, entry in enumerate(MEASURES.values()) if entry.listing == listing}
    against = list(AGAINST)

    def place_of(key: str) -> tuple[int, int]:
        base = base_key(key)
        suffix = key.removeprefix(f"{base}_")
        return shown[base], against.index(suffix) if suffix in against else -1

    chosen = [key for key in dict.fromkeys(keys) if base_key(key) in shown]
    return tuple(sorted((key for key in chosen if "method" in MEASURES[base_key(key)].of), key=place_of))


@contextmanager
def added(entry: Measure) -> Iterator[None]:
    """Add a measure to the table within the block."""
    assert entry.key not in MEASURES, f"two measures are called {entry.key}"
    MEASURES[entry.key] = entry
    try:
        yield
    finally:
        del MEASURES[entry.key]


def legend(keys: Iterable[str]) -> dict[str, str]:
    """Return the meaning of each measure by its title, each base measure only once."""
    known = dict.fromkeys(base_key(key) for key in keys)
    return {
        MEASURES[key].title: MEASURES[key].meaning
        for key in known
        if key in MEASURES and MEASURES[key].meaning
    }


def markdown_table() -> str:
    """Return the documentation's table of all measures."""
    lines = ["| measure | key | meaning | better |", "|---|---|---|---|"]
    for entry in MEASURES.values():
        title = entry.title.replace("|", "\\|")
        meaning = entry.meaning.replace("|", "\\|")
        lines.append(f"| {title} | `{entry.key}` | {meaning} | {entry.better or MISSING} |")
    return "\n".join(lines)
