"""Integrations of osae with other tools."""
