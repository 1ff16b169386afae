import jaxtyping
import pytest

from osae import kernels


@pytest.fixture(autouse=True)
def reference_kernels():
    """The plain definitions: files are tested here, and compiling the fast ones takes its time."""
    with kernels.using("reference"):
        yield


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Switches run-time shape checks off, so that a test sees the error a user would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
