"""Results of the language-model experiment are read, also those that release 0.1.0 wrote."""

import pytest

from osae import results
from osae.results.lm import Curve, LMResult, Place

LENGTHS = [16.0, 32.0]


def curve(value):
    return {"prefix": LENGTHS, "mean": [value, 0.5], "low": [0.1, 0.2], "high": [0.8, 0.9]}


def agreement(value):
    names = ("stability", "orderedness", "stability_of_full", "orderedness_of_full")
    return {name: curve(value) for name in names}


@pytest.fixture
def older():
    """A small file in the layout of release 0.1.0, with a comma in the name of a text."""
    shares = {"novel": 0.2, "reconstruction": 0.5, "unchanged": 0.3}
    moment = {"tokens": 100, "lengths": [16, 32], "stability": [0.3, 0.4], "orderedness": [0.5, 0.6]}
    return {
        "schema": 1,
        "experiment": "lm",
        "title": "Language model",
        "world": {"units": 32},
        "seeds": [0, 1],
        "columns": ["explained_variance"],
        "rows": [],
        "sections": [
            {
                "title": "a, b, start from noise",
                "rows": [{"method": "osae", "paper": None, "mse": {"mean": 0.1, "low": 0.0, "high": 0.2}}],
                "chance": {"stability": 0.2},
            },
            {
                "title": "Stitching",
                "columns": ["novel"],
                "rows": [{"method": "osae", **shares}],
                "chance": None,
            },
        ],
        "curves": {"a, b, noise": {"osae": agreement(0.25)}},
        "crossed": {
            "osae, noise": {
                "method": "osae",
                "start": "noise",
                "other_seed": agreement(0.35),
                "same_seed": agreement(0.45),
            }
        },
        "over_time": {"osae, a, b, noise": [moment]},
        "own_start": {"osae, a, b, noise": agreement(0.55)},
        "chance": {"stability": {"prefix": LENGTHS, "mean": [0.1, 0.05]}, "orderedness": 0.0},
        "stitching": [{"method": "osae", "paper": None, "small": 32, "large": 64, **shares}],
        "trials": [{"method": "osae", "rate": 0.01, "explained_variance": 0.7}],
        "rates": {"osae": 0.01},
        "claims": [],
        "figures": [],
        "notes": [],
    }


def test_files_of_release_0_1_0_are_read(older):
    result = results.parse(older)
    assert isinstance(result, LMResult)
    place = Place("a, b", "noise")
    assert result.places() == [place]
    assert result.curves_at(place)["osae"]["stability"] == Curve(
        (16, 32), (0.25, 0.5), (0.1, 0.2), (0.8, 0.9)
    )
    assert result.section_of(place).by_method()["osae"].mean("mse") == 0.1
    assert result.crossings_from("noise")["osae"].same_seed["orderedness"].mean == (0.45, 0.5)
    (progression,) = result.progressions
    assert (progression.place, progression.method) == (place, "osae")
    assert progression.moments[0].seeds["stability"] == Curve((16, 32), (0.3, 0.4))
    assert progression.moments[0].seeds["orderedness"].mean == (0.5, 0.6)
    assert result.own_starts[0].curves["stability"].mean == (0.55, 0.5)
    assert result.chance_curves["orderedness"].mean == (0.0, 0.0)
    assert (result.stitching.small, result.stitching.large) == (32, 64)
    assert [section.title for section in result.all_sections()] == [
        "a, b, start from noise",
        "Stitching: shares of 64 units by what each does in an SAE of 32",
    ]
    assert result.rates == {"noise": {"osae": 0.01}}  # tried from one start, used from all
    assert (result.trials[0].rate, result.trials[0].start) == (0.01, "noise")


def test_results_are_read_as_they_were_written(older):
    result = results.parse(older)
    again = results.parse(result.to_json())
    assert again == result
    assert again.to_json()["kind"] == "lm"


def test_written_results_follow_the_schema(older):
    validate = pytest.importorskip("jsonschema").validate
    validate(results.parse(older).to_json(), results.schema("lm"))
