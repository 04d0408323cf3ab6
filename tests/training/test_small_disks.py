"""Runs on file systems that are too small, have no names left or cannot be written: one line, and nothing lost.

Each is a file system of its own in memory, which only root may mount. `test_every_call.py` fills a made-up disk at
every call of a run without that. No disk can become read-only here while a run holds its files open (the kernel
refuses); `test_checkpoints.py` makes up the errors of one that does.
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
def untouched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untouched")
    command = Command(folder, *SETTINGS, "--out", folder / "run")
    assert command.wait() == 0, command.text
    return folder / "run"


@pytest.fixture
def disk(tmp_path):
    """Mounts a file system with some options, and unmounts it at the end."""
    place = tmp_path / "disk"
    place.mkdir()

    def make(options):
        done = mount("-t", "tmpfs", "-o", options, "tmpfs", place)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        return place

    yield make
    subprocess.run(["umount", "--lazy", place], capture_output=True)


def ends_in_one_line(command):
    assert command.wait() in (1, 2), command.text
    assert "Traceback" not in command.text
    assert command.text.strip().splitlines()[-1].startswith("regard train: ")


def goes_on(folder, run, untouched):
    again = Command(folder, *SETTINGS, "--out", run, "--resume", "auto")
    assert again.wait() == 0, again.text
    assert "Traceback" not in again.text and "damaged" not in again.text
    assert_same(run, untouched)
    assert not list(run.rglob(".part-*"))


@pytest.mark.parametrize(
    "options", [*(f"size={4 * pages}k" for pages in range(1, 33)), *(f"nr_inodes={n}" for n in range(2, 22))]
)
def test_a_run_on_a_small_disk_says_so_and_goes_on_once_there_is_room(tmp_path, disk, untouched, options):
    place = disk(options)
    command = Command(tmp_path, *SETTINGS, "--out", place / "run")
    if command.wait() != 0:
        ends_in_one_line(command)
        assert "full" in command.text or "No space left" in command.text
    (tmp_path / "log.txt").unlink()
    assert mount("-o", f"remount,{ROOM}", place).returncode == 0
    goes_on(tmp_path, place / "run", untouched)


def test_a_disk_that_cannot_be_written_is_refused(tmp_path, disk):
    ends_in_one_line(Command(tmp_path, *SETTINGS, "--out", disk(f"ro,{ROOM}") / "run"))
