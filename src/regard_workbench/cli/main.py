"""The program `regard`. Names the extra to install where a library of the command line is missing.

Nothing is imported here that a plain `pip install regard` does not bring.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

FAILED = 1


def requirements() -> list[str]:
    """The requirements of the installed regard."""
    from regard_workbench import extras

    return extras.requirements()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        from regard_workbench.cli.common.command import run_command

        return run_command(arguments)
    except ModuleNotFoundError as missing:
        from regard_workbench.extras import extra_of, package_of

        extra = extra_of(missing.name or "", requirements())
        if extra is None:
            raise
        print(
            f"regard: the Python package {package_of(missing.name or '')!r} is not installed. "
            f'Try pip install "regard[{extra}]".',
            file=sys.stderr,
        )
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
