"""Without SAELens, the integration says what it needs; what it does with it is in interop_real."""

import sys

import pytest


def test_without_saelens_the_message_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sae_lens", None)
    monkeypatch.delitem(sys.modules, "osae.integrations.saelens", raising=False)
    with pytest.raises(ImportError, match="pip install sae-lens"):
        import osae.integrations.saelens  # noqa: F401
