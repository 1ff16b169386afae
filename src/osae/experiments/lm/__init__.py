"""The language-model experiment: how consistent SAEs are across seeds and across texts."""
