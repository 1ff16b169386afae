"""Where activations come from."""
