import os

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: its programs run on the CPU
from osae import kernels


@pytest.fixture(params=kernels.BACKENDS)
def backend(request):
    """Run the test with every backend that this machine can run."""
    if request.param == "gpu":
        pytest.importorskip("triton")
    with kernels.using(request.param):
        yield request.param
