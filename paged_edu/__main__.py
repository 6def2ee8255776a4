"""``python -m paged_edu``: the command line, where the `paged-edu` script is not on the path."""
import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
