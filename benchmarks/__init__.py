"""Benchmarks and checks of this repository: see README.md in this folder."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
