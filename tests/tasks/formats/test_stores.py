"""Tar archives of strangers: regular members only, limits before memory is used."""

import io
import tarfile

import pytest

from regard.errors import BadValue
from regard_workbench.tasks.formats import stores


def packed(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return path


@pytest.mark.parametrize(
    ("ending", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")]
)
def test_members_of_a_tar_archive_are_read_by_name(tmp_path, ending, mode):
    members = [("b/two.txt", b"2" * 17), ("a/one.txt", b"one"), ("a/.hidden.txt", b"x"), ("a/other.bin", b"")]
    with stores.opened(packed(tmp_path / f"data.{ending}", members, mode)) as store:
        assert store.names((".txt",)) == ["a/one.txt", "b/two.txt"]
        assert store.read("b/two.txt", 17) == b"2" * 17
        with pytest.raises(BadValue, match="at most 16 bytes"):
            store.read("b/two.txt", 16)
        with pytest.raises(BadValue, match="is not in the archive"):
            store.read("c.txt", 5)


def test_links_and_devices_of_a_tar_archive_are_no_members(tmp_path):
    members = [
        ("good.txt", b"fine"),
        ("link.txt", (tarfile.SYMTYPE, "/etc/passwd")),
        ("hard.txt", (tarfile.LNKTYPE, "good.txt")),
        ("device.txt", (tarfile.CHRTYPE, "")),
    ]
    with stores.opened(packed(tmp_path / "data.tar", members)) as store:
        assert store.names((".txt",)) == ["good.txt"]
        with pytest.raises(BadValue, match="is not in the archive"):
            store.read("link.txt", 100)


@pytest.mark.parametrize("name", ["../outside.txt", "/absolute.txt", "a/../../b.txt"])
def test_names_of_a_tar_archive_that_point_outside_are_refused(tmp_path, name):
    with (
        stores.opened(packed(tmp_path / "data.tar", [(name, b"x")])) as store,
        pytest.raises(BadValue, match="points outside"),
    ):
        store.names((".txt",))


def test_a_tar_archive_that_unpacks_to_far_more_than_it_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("regard_workbench.tasks.formats.budget.SMALL", 100_000)
    path = packed(tmp_path / "data.tar.gz", [("zeros.txt", bytes(2_000_000))], "w:gz")
    with pytest.raises(BadValue, match="unpacks to more than"):
        stores.opened(path)


def test_damaged_tar_archives_are_refused_in_one_line(tmp_path):
    whole = packed(tmp_path / "data.tar.gz", [(f"{n}.txt", bytes(range(251)) * 40) for n in range(9)], "w:gz")
    content = whole.read_bytes()
    for name, damaged in (("cut.tar.gz", content[: len(content) // 2]), ("none.tar", b"no archive at all")):
        path = tmp_path / name
        path.write_bytes(damaged)
        with pytest.raises(BadValue, match="cannot be read as a tar archive") as error:
            stores.opened(path)
        assert "\n" not in str(error.value)
