"""`python -m jitgrad`, and the command `jitgrad`: nothing but the way in; the commands are in cli.py."""

import sys

from jitgrad.cli import main

if __name__ == "__main__":
    sys.exit(main())
