"""Training: one loop for every recipe."""
