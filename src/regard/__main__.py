"""`python -m regard` is the same program as `regard`."""

import sys

from regard_workbench.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
