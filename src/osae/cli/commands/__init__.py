"""The commands, one module each. Heavy libraries are imported only when a command runs."""
