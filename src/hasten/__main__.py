"""``python -m hasten``, and ``torchrun -m hasten``: the same as the command."""

import sys

from hasten.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
