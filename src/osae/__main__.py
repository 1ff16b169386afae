"""`python -m osae` is the command `osae`."""

import sys

from osae.cli import main

if __name__ == "__main__":
    sys.exit(main())
