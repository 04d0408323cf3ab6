"""The program `regard`. Names the extra to install where a library of the command line is missing.

Nothing is imported here that a plain `pip install regard` does not bring.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires

FAILED = 1
# Import names that are not the name of their package.
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
NOT_FOR_USERS = ("dev", "peers")
_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra\s*==\s*['\"]([\w-]+)['\"]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        from regard.cli.common.command import run_command

        return run_command(arguments)
    except ModuleNotFoundError as missing:
        extra = extra_of(missing.name or "", _requirements())
        if extra is None:
            raise
        print(
            f"regard: the Python package {_package(missing.name or '')!r} is not installed. "
            f'Try pip install "regard[{extra}]".',
            file=sys.stderr,
        )
        return FAILED


def extra_of(module: str, requirements: Iterable[str]) -> str | None:
    """The extra of regard that brings a module; None where none does. `requirements` as in a package's metadata."""
    found = [match for line in requirements if (match := _REQUIREMENT.match(line))]
    package = _package(module)
    return next((one[2] for one in found if _plain(one[1]) == package and one[2] not in NOT_FOR_USERS), None)


def _package(module: str) -> str:
    name = module.partition(".")[0]
    return _plain(PACKAGES.get(name, name))


def _plain(name: str) -> str:
    """One spelling for a package, as pip compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> list[str]:
    try:
        return requires("regard") or []
    except PackageNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main())
