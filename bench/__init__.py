"""Everything that measures regard; README.md lists it."""
