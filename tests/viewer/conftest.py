"""Fixtures of the viewer's tests."""

import pytest

from tests.cli.trained import Trained


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("runs"))
