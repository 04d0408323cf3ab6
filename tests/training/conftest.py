"""Every file of tests here may ask for the toy task."""

from tests.training.registered import toy_registered  # noqa: F401
