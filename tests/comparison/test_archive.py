"""A run folder as bytes: all of it arrives, and nothing lands outside of where it belongs."""

import io
import tarfile

import pytest

from regard.errors import BadValue
from regard_workbench.comparison.engines import archive


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "..\\out"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path, name):
    with pytest.raises(BadValue, match="not a file of a run folder"):
        archive.unpack(tar_of(tarfile.TarInfo(name)), tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_an_archive_with_links_or_devices_is_refused(tmp_path, kind):
    member = tarfile.TarInfo("innocent")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(BadValue, match="not a file of a run folder"):
        archive.unpack(tar_of(member), tmp_path / "here")
    with pytest.raises(BadValue, match="not a run folder"):
        archive.unpack(b"no tar at all" * 99, tmp_path / "here")


def tar_of(member):
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as tar:
        tar.addfile(member)
    return into.getvalue()


def test_an_archive_holds_the_folder_without_links_and_locks(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    (run / "checkpoints" / "step-1" / "model").write_bytes(bytes(range(256)))
    (run / "empty").mkdir()
    (run / ".lock").touch()
    (run / "link").symlink_to("/etc/passwd")
    there = tmp_path / "there"
    there.mkdir()
    (there / "old").touch()
    archive.unpack(archive.pack(run), there)
    found = {path.relative_to(there).as_posix() for path in there.rglob("*")}
    assert found == {"checkpoints", "checkpoints/step-1", "checkpoints/step-1/model", "empty"}
    assert (there / "checkpoints/step-1/model").read_bytes() == bytes(range(256))
