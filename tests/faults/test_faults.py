"""A short version of `make test-faults`: a few faults of every kind, none of which loses anything."""

import jaxtyping
import pytest

from tests.faults import damage, kills, requests, storage
from tests.faults.outcomes import DETECTED, LOST, SURVIVED, Tally, format_table
from tests.faults.processes import warm

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
    (kills.kill_training, 3),
    (kills.resume_twice, 1),
    (kills.kill_studies, 4),
]


@pytest.fixture(scope="module", autouse=True)
def warmed(tmp_path_factory):
    jaxtyping.config.update("jaxtyping_disable", True)  # a user's shapes are not checked while a file is read
    warm(tmp_path_factory.mktemp("warm"))
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(("campaign", "count"), CAMPAIGNS, ids=lambda case: getattr(case, "__name__", ""))
def test_nothing_is_lost(campaign, count, tmp_path):
    tally = campaign(count, tmp_path / "x", seed=1)
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
