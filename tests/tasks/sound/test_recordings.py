"""Recordings from folders, archives and lists: fixed splits, and refusals that name the file."""

import struct
import zipfile

import numpy as np
import pytest

from regard.errors import BadValue
from regard_workbench.tasks.formats import stores
from regard_workbench.tasks.sound import recordings, tones
from tests.tasks.sound.wav_bytes import wav, whole

SPEAKERS = ("ann", "bob", "eve")


def sound(seed, rate=8000):
    draw = np.random.default_rng(seed)
    return whole(draw.integers(-3000, 3000, 400 + 7 * seed % 100).tolist(), rate)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two digits by three speakers, seven takes each."""
    made = tmp_path_factory.mktemp("named")
    for digit in (3, 8):
        for speaker in SPEAKERS:
            for take in range(7):
                (made / f"{digit}_{speaker}_{take}.wav").write_bytes(sound(digit * 100 + take))
    return made


@pytest.fixture(scope="module")
def archive(folder):
    path = folder.parent / "named.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for file in sorted(folder.iterdir()):
            packed.write(file, f"recordings/{file.name}")
        packed.writestr("__MACOSX/recordings/._3_ann_0.wav", b"not a sound")
    return path


def names(splits):
    return {split: sorted(one.name.rpartition("/")[2] for one in part) for split, part in splits.items()}


def test_takes_up_to_four_are_the_test_and_a_tenth_of_the_rest_is_validation(folder):
    found = names(recordings.load(folder, 8000))
    assert len(found["test"]) == 30 and all(int(name[:-4].rpartition("_")[2]) < 5 for name in found["test"])
    assert len(found["validation"]) == 1 and len(found["train"]) == 11
    assert not set(found["validation"]) & set(found["train"])
    assert found == names(recordings.load(str(folder), 8000)), "the same every time"


def test_an_archive_is_split_as_its_folder(folder, archive):
    one, other = recordings.load(folder, 8000), recordings.load(archive, 8000)
    for split in ("train", "validation", "test"):
        ours = {r.name: r.samples.tobytes() for r in one[split]}
        theirs = {r.name.rpartition("/")[2]: r.samples.tobytes() for r in other[split]}
        assert ours == theirs and ours
    assert recordings.speakers(one) == recordings.speakers(other) == set(SPEAKERS)


def test_an_unseen_speaker_is_in_the_test_alone_with_all_recordings(folder):
    found = recordings.load(folder, 8000, unseen="bob")
    assert sum(one.speaker == "bob" for one in found["test"]) == 14 and len(found["test"]) == 20 + 14
    assert all(one.speaker != "bob" for split in ("train", "validation") for one in found[split])
    with pytest.raises(BadValue, match=r"unseen: there is no 'bo'\. Did you mean 'bob'"):
        recordings.load(folder, 8000, unseen="bo")


def test_lists_name_files_beside_them_and_their_splits(tmp_path):
    (tmp_path / "sounds").mkdir()
    for number in range(5):
        (tmp_path / "sounds" / f"{number}.wav").write_bytes(sound(number))
    (tmp_path / "train.tsv").write_text("sounds/0.wav\tgood  morning\nsounds/1.wav\tgood night\n\n")
    (tmp_path / "dev.tsv").write_text("sounds/2.wav\tnight\n")
    (tmp_path / "test.tsv").write_text("sounds/3.wav\tmorning\n")
    found = recordings.load(tmp_path, 8000)
    assert {split: [one.transcript for one in part] for split, part in found.items()} == {
        "train": ["good morning", "good night"],
        "validation": ["night"],
        "test": ["morning"],
    }
    with pytest.raises(BadValue, match="name no speakers"):
        recordings.load(tmp_path, 8000, unseen="ann")


def test_one_list_is_split_by_a_hash(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.wav").write_bytes(sound(number))
    (tmp_path / "all.tsv").write_text("".join(f"{n}.wav\tword{n}\n" for n in range(20)))
    found = recordings.load(tmp_path / "all.tsv", 8000)
    assert {split: len(part) for split, part in found.items()} == {"train": 16, "validation": 2, "test": 2}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a.wav hello", r"list\.tsv:2: expected path TAB transcript, got 'a.wav hello'"),
        ("a.wav\t ", r"list\.tsv:2: expected path TAB transcript"),
        ("../a.wav\thello", r"list\.tsv:2: .*the name '\.\./a\.wav' points outside"),
        ("/etc/passwd\thello", r"list\.tsv:2: .*points outside"),
        ("b.wav\thello", r"list\.tsv:2: data: cannot read .*b\.wav: No such file"),
        ("empty.wav\thello", r"list\.tsv:2: data: .*empty\.wav is empty"),
    ],
)
def test_wrong_lines_of_a_list_are_refused_with_their_place(tmp_path, line, words):
    (tmp_path / "a.wav").write_bytes(sound(1))
    (tmp_path / "empty.wav").touch()
    (tmp_path / "list.tsv").write_text(f"a.wav\tyes\n{line}\n")
    with pytest.raises(BadValue, match=words):
        recordings.load(tmp_path / "list.tsv", 8000)


def test_other_names_other_rates_and_damage_are_said_with_the_file(folder, tmp_path):
    with pytest.raises(BadValue, match="there is no file or folder"):
        recordings.load(tmp_path / "nowhere", 8000)
    with pytest.raises(BadValue, match="holds no sound"):
        recordings.load(tmp_path, 8000)
    (tmp_path / "three_ann_1.wav").write_bytes(sound(1))
    with pytest.raises(BadValue, match=r"three_ann_1\.wav: expected a name of the form <digit>_<speaker>_<n>\.wav"):
        recordings.load(tmp_path, 8000)
    (tmp_path / "three_ann_1.wav").rename(tmp_path / "3_ann_1.wav")
    with pytest.raises(BadValue, match="no recording is for train"):
        recordings.load(tmp_path, 8000)
    (tmp_path / "3_ann_9.wav").write_bytes(sound(1)[:-30])
    with pytest.raises(BadValue, match=r"3_ann_9\.wav ends before the .* bytes of sound"):
        recordings.load(tmp_path, 8000)


def test_stereo_at_48_kilohertz_is_brought_to_the_rate_of_the_task(tmp_path):
    frames = np.repeat(np.sin(np.arange(4800) * 2 * np.pi * 300 / 48000) * 16000, 2).astype("<i2")
    for take in (0, 5, 6):
        (tmp_path / f"1_ann_{take}.wav").write_bytes(wav(frames.tobytes(), channels=2, rate=48000))
    found = recordings.load(tmp_path, 8000)
    (one,) = found["test"]
    assert len(one.samples) == 800
    expected = np.sin(np.arange(800) * 2 * np.pi * 300 / 8000) * 16000 / 32768
    assert np.abs(one.samples - expected)[80:-80].max() < 2e-3


def packed(path, content, name="3_ann_0.wav", how=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", how) as made:
        made.writestr(name, content)
    return path


def test_an_archive_that_unpacks_to_far_more_than_it_holds_is_refused(tmp_path):
    with pytest.raises(BadValue, match=r"bomb\.zip unpacks to more than 64 MiB"):
        stores.opened(packed(tmp_path / "bomb.zip", bytes(96 * 2**20)))


@pytest.mark.parametrize("name", ["../3_ann_0.wav", "/3_ann_0.wav", "a/../../3_ann_0.wav", "C:/3_ann_0.wav"])
def test_names_that_point_outside_of_an_archive_are_refused(tmp_path, name):
    with stores.opened(packed(tmp_path / "out.zip", b"x", name)) as store, pytest.raises(BadValue, match="outside"):
        store.names((".wav",))


def test_damaged_archives_are_refused_and_closed(tmp_path):
    whole = packed(tmp_path / "a.zip", sound(1) * 20).read_bytes()
    for content in (b"", b"PK\3\4 nothing", whole[:200]):
        (tmp_path / "b.zip").write_bytes(content)
        with pytest.raises(BadValue, match=r"b\.zip cannot be read as a zip archive"):
            stores.opened(tmp_path / "b.zip")
    damaged = bytearray(whole)
    damaged[60:80] = bytes(20)
    (tmp_path / "c.zip").write_bytes(damaged)
    with (
        stores.opened(tmp_path / "c.zip") as store,
        pytest.raises(BadValue, match=r"c\.zip/3_ann_0\.wav cannot be unpacked"),
    ):
        store.read("3_ann_0.wav", 10**6)


def test_an_archive_whose_directory_states_a_smaller_size_is_not_read_beyond_it(tmp_path):
    path = packed(tmp_path / "lie.zip", bytes(1_000_000))
    lying = path.read_bytes().replace(struct.pack("<L", 1_000_000), struct.pack("<L", 100))
    path.write_bytes(lying)
    with stores.opened(path) as store, pytest.raises(BadValue, match=r"cannot be unpacked|holds more"):
        store.read("3_ann_0.wav", 1000)


def test_a_file_of_an_archive_above_the_limit_is_refused_before_it_is_unpacked(tmp_path):
    with stores.opened(packed(tmp_path / "a.zip", bytes(5000))) as store:
        with pytest.raises(BadValue, match="expected at most 4,999 bytes"):
            store.read("3_ann_0.wav", 4999)
        with pytest.raises(BadValue, match="is not in the archive"):
            store.read("other.wav", 4999)


def test_links_and_hidden_files_of_a_folder_are_left_out(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"x")
    (tmp_path / ".b.wav").write_bytes(b"x")
    (tmp_path / "c.wav").symlink_to(tmp_path / "a.wav")
    assert stores.opened(tmp_path).names((".wav",)) == ["a.wav"]


def test_tones_are_the_same_on_every_machine_and_differ_between_takes():
    one, again = tones.spoken(7, "bass", 3), tones.spoken.__wrapped__(7, "bass", 3)
    assert np.array_equal(one, again) and 1000 < len(one) < 4000
    assert np.array_equal(one * 32768, np.round(one * 32768)), "as a 16-bit file"
    assert not np.array_equal(one[:1000], tones.spoken(7, "bass", 4)[:1000])


def test_no_digit_can_be_told_by_its_tones_without_their_order():
    sets = [frozenset(tune) for tune in tones.TUNES]
    assert len(set(tones.TUNES)) == 10 and all(sets.count(one) > 1 for one in sets)
