"""`regard compare --out`: a folder that cannot be written to is refused before anything runs."""

import os
import tempfile
from pathlib import Path

import pytest

from regard.errors import BadValue
from regard_workbench.comparison import compare as module


@pytest.fixture
def nobody():
    """This process without the rights of root, who may write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def locked():
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    folder.chmod(0o555)
    yield folder
    folder.rmdir()


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_folder_without_write_permission_is_refused(locked, nobody, inside):
    with (
        pytest.raises(BadValue, match=r"--out: cannot write in .*: Permission denied"),
        module._folder(locked / inside),
    ):
        pytest.fail("it went in")
