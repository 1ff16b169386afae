"""A short version of `make test-faults`: a few faults of every kind, none of which loses anything."""

import tempfile
from pathlib import Path

import jaxtyping
import pytest

from tests.faults import damage, kills, requests, storage
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, format_table
from tests.faults.processes import MEMORY

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
CAMPAIGNS = [
    (damage.damage_saes, 60),
    (damage.damage_shards, 60),
    (damage.damage_results, 60),
    (damage.damage_runs, 8),
    (requests.send_lines, 200),
    (requests.send_configs, 100),
    (requests.send_files, 30),
    (requests.send_bombs, 30),
    (kills.kill_training, 54),
    (kills.resume_twice, 1),
    (kills.kill_studies, 16),
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


@pytest.mark.slow
def test_a_full_disk_names_the_file_and_the_run_is_resumed(tmp_path):
    tally = storage.fill_disk(5, tmp_path / "disk", seed=1)
    if tally.tried == 0:
        pytest.skip("no disk can be mounted here")
    assert tally.lost == []
    assert tally.counts[DETECTED] > 0


def test_the_table_counts_each_end():
    tally = Tally("fault")
    for end in (SURVIVED, SURVIVED, DETECTED, LOST):
        tally.add(end, "what")
    assert format_table([tally]).splitlines()[-1] == "| fault | 4 | 2 | 1 | 1 |"
