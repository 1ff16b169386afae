"""The benchmark of the matching measures what it says, at sizes that take no time."""

import json

import pytest
import torch
from torch.nn.functional import normalize

from benchmarks.speed import matching
from benchmarks.speed.matching import Case


@pytest.fixture
def one_process(monkeypatch):
    """Every solver in this process: a new one takes seconds to start."""
    monkeypatch.setattr(
        matching,
        "solve_alone",
        lambda solver, case, threads: matching.solve(
            solver, *matching.make_dictionaries(case.units, case.width, case.kind)
        ),
    )


def test_sixty_percent_of_realistic_atoms_have_a_partner_in_another_place():
    a, b = matching.make_dictionaries(200, 256, "realistic")
    best, place = (normalize(a) @ normalize(b).T).max(1)
    assert int((best > 0.4).sum()) == 120
    assert int((place == torch.arange(200)).sum()) < 10


def test_dictionaries_are_the_same_each_time_and_random_ones_are_unrelated():
    first, second = (matching.make_dictionaries(50, 256, "random") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert float((first[0] @ first[1].T).abs().max()) < 0.4


def test_sizes_by_default_and_on_request():
    assert list(matching.list_cases(None, 512, scipy=True)) == [
        Case(16_384, 512, "realistic", True),
        Case(16_384, 512, "random", True),
        Case(65_536, 512, "realistic", False),
    ]
    assert [case.units for case in matching.list_cases(99, 8, scipy=False)] == [99, 99]
    assert not any(case.scipy for case in matching.list_cases(None, 8, scipy=False))


@pytest.mark.usefixtures("one_process")
def test_benchmark_writes_a_table_and_a_file(tmp_path, capsys):
    assert matching.main(["--units", "80", "--width", "8", "--threads", "1", "--out", str(tmp_path)]) == 0
    assert "realistic" in capsys.readouterr().out
    result = json.loads((tmp_path / "matching.json").read_text())
    assert (result["schema"], result["threads"]) == (1, 1)
    assert {"osae", "scipy", "numba"} <= result["versions"].keys()
    assert [one["kind"] for one in result["cases"]] == ["realistic", "random"]
    for one in result["cases"]:
        assert (one["units"], one["width"], one["optimal"]) == (80, 8, True)
        assert one["gap"] <= 1e-6
        assert one["value"] == pytest.approx(one["scipy_value"], rel=1e-9)
        assert all(one[key] > 0 for key in ("seconds", "peak_mb", "scipy_seconds", "scipy_peak_mb"))


@pytest.mark.usefixtures("one_process")
def test_without_scipy_its_numbers_are_missing(tmp_path):
    asked = ["--units", "40", "--width", "8", "--no-scipy", "--threads", "1", "--out", str(tmp_path)]
    assert matching.main(asked) == 0
    for one in json.loads((tmp_path / "matching.json").read_text())["cases"]:
        assert one["scipy_seconds"] is one["scipy_value"] is one["scipy_peak_mb"] is None


def test_a_process_of_its_own_finds_the_same():
    pair = matching.make_dictionaries(90, 8, "realistic")
    found = matching.solve_alone("osae", Case(90, 8, "realistic", False), 1)
    assert found["value"] == pytest.approx(matching.solve("osae", *pair)["value"], rel=1e-12)


def test_a_process_that_fails_is_reported(monkeypatch):
    monkeypatch.setattr(matching.sys, "executable", "false")
    with pytest.raises(RuntimeError, match="osae stopped at Case"):
        matching.solve_alone("osae", Case(90, 8, "random", False), 1)
