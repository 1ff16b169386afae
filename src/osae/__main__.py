"""Run the command `osae` as `python -m osae`."""

from osae.cli import run

if __name__ == "__main__":
    run()
