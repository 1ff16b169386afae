"""Shapes in public signatures are checked while the tests run, and nowhere else."""

import os

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401  (the hook below looks it up by name)

CHECKED = (
    "osae.config",
    "osae.data",
    "osae.dictionary",
    "osae.model",
    "osae.objective",
    "osae.prefix",
    "osae.schedule",
    "osae.sparsify",
    "osae.training",
)
install_import_hook(CHECKED, "tests.typechecker.checked")
os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def warmed(tmp_path_factory) -> None:
    """Everything is imported and compiled, so that commands in forked processes start at once."""
    from tests.faults.processes import warm

    warm(tmp_path_factory.mktemp("warm"))


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Switches run-time shape checks off, so that a test sees the error a user would see."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
