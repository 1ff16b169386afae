"""Trials on hard worlds: every one on record, also those that failed."""
