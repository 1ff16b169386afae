"""A short version of `make test-faults`: a few faults of every kind, none of which loses anything."""

import tempfile
from collections import Counter
from pathlib import Path

import jaxtyping
import pytest

from tests.faults import damage, experiments, kills, numbers, requests, storage
from tests.faults.__main__ import keep, keep_duration, read_counts, write_table
from tests.faults.campaigns import CAMPAIGNS as LONG
from tests.faults.campaigns import list_parts
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, format_table
from tests.faults.processes import MEMORY

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
CAMPAIGNS = [
    (damage.damage_saes, 60),
    (damage.damage_shards, 60),
    (damage.damage_results, 60),
    (damage.damage_runs, 8),
    (numbers.feed_numbers, 50),
    (requests.send_lines, 200),
    (requests.send_configs, 100),
    (requests.send_files, 30),
    (requests.send_bombs, 30),
    (kills.kill_training, 42),
    (kills.resume_twice, 1),
    (kills.kill_studies, 21),
    (kills.kill_trust, 12),
    (kills.kill_contexts, 12),
    (kills.kill_harvest, 12),
    (experiments.kill_ranks, 1),
    (experiments.kill_reproduce, 1),
]


@pytest.fixture(scope="module", autouse=True)
def unchecked(warmed):
    jaxtyping.config.update("jaxtyping_disable", True)  # a user's shapes are not checked while a file is read
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def in_memory(tmp_path):
    """A folder where flushing a file takes no time, if there is one."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.mark.parametrize(("campaign", "count"), CAMPAIGNS, ids=lambda case: getattr(case, "__name__", ""))
def test_nothing_is_lost(campaign, count, in_memory):
    tally = campaign(count, in_memory / "x", seed=1)
    assert tally.lost == []
    assert tally.tried >= count


def test_the_documentation_promises_something_about_every_number_in_every_type_and_command():
    promises = numbers.read_promises()
    assert set(promises.values()) == {numbers.REFUSED, numbers.USED}
    for kind in numbers.KINDS:
        types = ("int32",) if kind == "whole numbers" else numbers.TYPES
        for dtype in types:
            for command in numbers.COMMANDS:
                wanted = command != "contexts" or dtype in numbers.HARVESTED
                assert ((kind, dtype, command) in promises) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("campaign", "count"),
    [
        (storage.forbid_writing, 8),
        (storage.deny_permission, 8),
        (storage.change_inputs, 8),
        (storage.slow_down, 1),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_storage_that_fails_names_the_file_and_work_resumes(campaign, count, tmp_path):
    tally = campaign(count, tmp_path / "x", seed=1)
    if tally.tried == 0:
        pytest.skip("no disk can be mounted here")
    assert tally.lost == []


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_a_full_disk_names_the_file_and_the_run_is_resumed(count, tmp_path):
    tally = storage.fill_disk(count, tmp_path / "disk", seed=1)
    if tally.tried == 0:
        pytest.skip("no disk can be mounted here")
    assert tally.lost == []
    assert tally.counts[DETECTED] > 0


def test_the_table_counts_each_end():
    tally = Tally("fault")
    for end in (SURVIVED, SURVIVED, DETECTED, LOST):
        tally.add(end, "what")
    assert format_table([tally]).splitlines()[-1] == "| fault | 4 | 2 | 1 | 1 |"


def test_a_resumed_long_version_leaves_out_what_is_counted_and_adds_up_the_rest(tmp_path, capsys):
    parts = list(list_parts(1.0, ""))
    assert {name: sum(part.count for part in parts if part.campaign is name) for name in LONG} == {
        name: total for name, (total, _) in LONG.items()
    }
    first, second = (part for part in parts if part.campaign is kills.kill_harvest and part.seed < 2)
    for part, end in ((first, SURVIVED), (second, DETECTED)):
        tally = Tally("SIGKILL of harvest")
        tally.add(end)
        keep(tmp_path, part, tally, 1.0)
    assert {line["part"] for line in read_counts(tmp_path)} == {first.name, second.name}
    assert write_table(tmp_path).splitlines()[-1] == "| SIGKILL of harvest | 2 | 1 | 1 | 0 |"


def test_the_duration_of_a_run_is_kept_and_says_whether_it_was_resumed(tmp_path):
    keep(tmp_path, next(list_parts(1.0, "kill_harvest")), Tally("SIGKILL of harvest", Counter(survived=3)), 1)

    def last_row() -> str:
        write_table(tmp_path)
        return (tmp_path / "table.md").read_text().splitlines()[-1]

    keep_duration(tmp_path, 600, workers=2, resumed=False)
    assert last_row() == "| 3 | 3 | 0 | 10 minutes | 2 | 0 |"
    keep_duration(tmp_path, 300, workers=2, resumed=True)
    assert last_row() == "| 3 | 3 | 0 | 15 minutes | 2 | 1 |"
    (tmp_path / "run.json").unlink()
    keep_duration(tmp_path, 300, workers=2, resumed=True)
    assert last_row() == "| 3 | 3 | 0 | unknown | 2 | 1 |"
