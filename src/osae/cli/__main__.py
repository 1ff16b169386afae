import sys

from osae.cli import main

sys.exit(main())
