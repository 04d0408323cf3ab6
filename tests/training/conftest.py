"""Every test file here may use the toy task."""

from tests.training.registered import toy_registered  # noqa: F401
