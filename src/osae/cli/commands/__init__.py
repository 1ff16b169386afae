"""The commands, one module each: its options and its function. Nothing heavy is imported before it runs."""
