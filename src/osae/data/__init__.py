"""Sources of activations: synthetic worlds, text, language models and files."""
