"""Runs on file systems that are too small, have no inodes left or are read-only: a one-line error, and nothing lost.

Each test mounts a tmpfs, which only root may do. `test_every_call.py` simulates a full disk at every call of a run
without a mount. A file system cannot become read-only here while a run holds files open (the kernel refuses);
`test_checkpoints.py` simulates those errors.
"""

import subprocess

import pytest

from tests.training.commands import Command
from tests.training.toy import assert_same

SETTINGS = ["train", "toy", "--steps", "12", "--save-every", "3", "--log-every", "1", "--device", "cpu"]
ROOM = "size=8m,nr_inodes=4k"

pytestmark = pytest.mark.nightly


def mount(*words):
    return subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    command = Command(folder, *SETTINGS, "--out", folder / "run")
    assert command.wait() == 0, command.text
    return folder / "run"


@pytest.fixture
def disk(tmp_path):
    """Mount a tmpfs with the given options, and unmount it at the end."""
    path = tmp_path / "disk"
    path.mkdir()

    def make(options):
        done = mount("-t", "tmpfs", "-o", options, "tmpfs", path)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        return path

    yield make
    subprocess.run(["umount", "--lazy", path], capture_output=True)


def assert_one_line_error(command):
    assert command.wait() in (1, 2), command.text
    assert "Traceback" not in command.text
    assert command.text.strip().splitlines()[-1].startswith("regard train: ")


def assert_resumes(folder, run, uninterrupted):
    again = Command(folder, *SETTINGS, "--out", run, "--resume", "auto")
    assert again.wait() == 0, again.text
    assert "Traceback" not in again.text and "damaged" not in again.text
    assert_same(run, uninterrupted)
    assert not list(run.rglob(".part-*"))


@pytest.mark.parametrize(
    "options", [*(f"size={4 * pages}k" for pages in range(1, 33)), *(f"nr_inodes={n}" for n in range(2, 22))]
)
def test_a_run_on_a_full_disk_is_an_error_and_resumes_once_there_is_room(tmp_path, disk, uninterrupted, options):
    path = disk(options)
    command = Command(tmp_path, *SETTINGS, "--out", path / "run")
    if command.wait() != 0:
        assert_one_line_error(command)
        assert "full" in command.text or "No space left" in command.text
    (tmp_path / "log.txt").unlink()
    assert mount("-o", f"remount,{ROOM}", path).returncode == 0
    assert_resumes(tmp_path, path / "run", uninterrupted)


def test_a_read_only_disk_is_an_error(tmp_path, disk):
    assert_one_line_error(Command(tmp_path, *SETTINGS, "--out", disk(f"ro,{ROOM}") / "run"))
