import pytest

from osae.data.shards import write_shards
from tests.studies.language import language  # noqa: F401
from tests.studies.saes import WORLD


@pytest.fixture
def shards(tmp_path):
    """Activations of the world, on disk."""
    return write_shards(tmp_path / "activations", [WORLD.draw("test").x], rows_per_shard=250)
