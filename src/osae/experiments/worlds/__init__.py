"""Experiments on worlds: synthetic data whose true dictionary is known."""
