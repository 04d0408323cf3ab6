"""The settings of a run: what there is to set, how values are read from flags and YAML, what a recipe fills in."""

from regard_workbench.training.config.config import (
    FIXED,
    Config,
    Optim,
    flat,
    from_yaml,
    make,
    mistakes_of,
    non_defaults,
    parse_yaml,
    read,
    refuse,
    settings,
    to_yaml,
)

__all__ = [
    "FIXED",
    "Config",
    "Optim",
    "flat",
    "from_yaml",
    "make",
    "mistakes_of",
    "non_defaults",
    "parse_yaml",
    "read",
    "refuse",
    "settings",
    "to_yaml",
]
