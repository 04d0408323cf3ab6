"""The extras of regard (`pip install "regard[NAME]"`) and the packages that each of them brings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version

# Import names that are not the name of their package.
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "mlflow": "mlflow-skinny"}
NOT_FOR_USERS = ("dev", "peers")
_REQUIREMENT = re.compile(r"([\w.-]+).*\bextra\s*==\s*['\"]([\w-]+)['\"]")


def requirements() -> list[str]:
    """The requirements of the installed regard, as in a package's metadata."""
    try:
        return requires("regard") or []
    except PackageNotFoundError:
        return []


def by_extra(lines: Iterable[str]) -> dict[str, list[str]]:
    """The packages of each extra for users, from lines of requirements."""
    packages: dict[str, list[str]] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match and match[2] not in NOT_FOR_USERS:
            packages.setdefault(match[2], []).append(plain_name(match[1]))
    return packages


def extra_of(module: str, lines: Iterable[str]) -> str | None:
    """The extra of regard that brings a module; None where none does."""
    package = package_of(module)
    return next((extra for extra, packages in by_extra(lines).items() if package in packages), None)


def package_of(module: str) -> str:
    """The package that a module belongs to."""
    name = module.partition(".")[0]
    return plain_name(PACKAGES.get(name, name))


def plain_name(name: str) -> str:
    """One spelling for a package, as pip compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
