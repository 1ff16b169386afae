"""Trials on activations of a language model; all are recorded, including those that failed."""
