"""The paper's tables and figures as data and code, with the published numbers beside ours."""

from osae.experiments.toy import Options, toy
from osae.experiments.tuning import tuning
from osae.experiments.variations import ablate, energy, pca, schedules, sizes, zipf

EXPERIMENTS = {
    "toy": toy,
    "sizes": sizes,
    "zipf": zipf,
    "pca": pca,
    "energy": energy,
    "ablate": ablate,
    "schedules": schedules,
    "tuning": tuning,
}

__all__ = ["EXPERIMENTS", "Options"]
