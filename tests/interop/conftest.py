import jaxtyping
import pytest


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Switches run-time shape checks off, so that a test sees the error a user would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
