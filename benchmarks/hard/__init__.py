"""Trials on hard worlds; all are recorded, including those that failed."""
