"""`--data` takes a file, a folder or files joined by commas; names that say a split are that split, on every task."""

import json

import pytest

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.formats.reading import read_lines
from regard_workbench.tasks.formats.splits import chosen_files

SPLITS = ("train", "validation", "test")


def sentence(split, number):
    return f"word{number} of {split} number{number % 7}"


def told(split, number):
    return f"1 {sentence(split, number)} .\n2 where is it ?\tplace{number % 3}\t1"


# For each task the ending of its files, and an example as it stands in one of a split.
FORMS = {
    "answer": (".txt", told),
    "classify": (".tsv", lambda split, n: f"{sentence(split, n)}\t{n % 2}"),
    "language": (".txt", sentence),
    "reply": (".tsv", lambda split, n: f"{sentence(split, n)}\tyes {n}"),
    "respond": (".tsv", lambda split, n: f"1\t{sentence(split, n)}\tyes {n}\n0\t{sentence(split, n)}\tno {n}"),
    "tag": (".txt", lambda split, n: f"name{n} B-person\nof O\n{split} O\n"),
    "hidden-words": (".txt", lambda split, n: f"name{n} B-person\nof O\n{split} O\n"),
}


def write(path, name, split, count=23):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(FORMS[name][1](split, n) + "\n" for n in range(count)))
    return path


def sizes(name, data):
    task = tasks.build(name, data=data)
    return [len(task.examples(split)) for split in SPLITS]


def three(folder, name):
    """A file for each split, of different lengths, called as people call them."""
    counts = {"train": 31, "dev": 11, "test": 7}
    return [write(folder / f"my_{word}{FORMS[name][0]}", name, word, count) for word, count in counts.items()]


@pytest.mark.parametrize("name", FORMS)
def test_files_joined_by_commas_are_the_splits_that_their_names_say(tmp_path, name):
    files = three(tmp_path / "all", name)
    expected = sizes(name, str(tmp_path / "all"))
    assert sizes(name, ",".join(map(str, files))) == expected
    assert sizes(name, ",".join(map(str, reversed(files)))) == expected


def test_a_test_text_named_in_a_list_is_not_learned_from(tmp_path):
    """It was joined to the others, and most of it learned."""
    task = tasks.build("language", data=",".join(map(str, three(tmp_path, "language"))))
    assert "of test" not in task.texts["train"] and "of dev" not in task.texts["train"]
    assert task.texts["test"].count("of test") == 7


@pytest.mark.parametrize("name", FORMS)
def test_a_folder_with_a_file_of_any_name_is_read_as_that_file_is(tmp_path, name):
    alone = write(tmp_path / "some" / f"collected{FORMS[name][0]}", name, "train", 41)
    assert sizes(name, str(tmp_path / "some")) == sizes(name, str(alone))


@pytest.mark.parametrize("name", FORMS)
def test_no_file_that_was_named_is_left_out(tmp_path, name):
    """Of two files without the name of a split, only the first was read, or none."""
    ending = FORMS[name][0]
    first, second = (write(tmp_path / f"{word}{ending}", name, word, 41) for word in ("spring", "autumn"))
    if name == "language":  # its examples are windows
        texts = tasks.build(name, data=f"{first},{second}").texts
        assert sum(text.count("\n") for text in texts.values()) == 82
    else:
        assert sum(sizes(name, f"{first},{second}")) == 82


@pytest.mark.parametrize("name", FORMS)
def test_a_folder_with_a_test_file_alone_is_not_trained_on(tmp_path, name):
    write(tmp_path / f"test{FORMS[name][0]}", name, "test", 41)
    with pytest.raises(BadValue, match=r"for train\. It has: test"):
        tasks.build(name, data=str(tmp_path)).examples("train")


@pytest.mark.parametrize("name", ["classify", "language", "reply", "tag"])
def test_a_file_without_a_split_beside_named_ones_is_asked_about(tmp_path, name):
    ending = FORMS[name][0]
    book, held = (write(tmp_path / f"book{ending}", name, "train"), write(tmp_path / f"test{ending}", name, "test"))
    with pytest.raises(BadValue, match=rf"book\{ending}' does not say which split it is for, and .*test"):
        tasks.build(name, data=f"{book},{held}").examples("train")


def test_in_a_folder_a_readme_beside_the_splits_is_left_out(tmp_path):
    for name in ("train.txt", "valid.txt", "test_b.txt", "test_a.txt", "README.txt"):
        (tmp_path / name).write_text("x\n")
    found = chosen_files([tmp_path])
    assert {split: [path.name for path in some] for split, some in found.items()} == {
        "train": ["train.txt"],
        "validation": ["valid.txt"],
        "test": ["test_a.txt"],
    }


def test_one_table_in_a_folder_is_enough_for_a_series_and_for_histories(tmp_path):
    rows = "".join(f"2020-01-{1 + n // 24:02d} {n % 24:02d}:00:00,{n % 13}\n" for n in range(311))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "power.csv").write_text("time,load\n" + rows)
    assert tasks.build("series", data=str(tmp_path / "a"), context=29, horizon=7).table.names == ("load",)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "taken.txt").write_text("".join(f"{n % 5} {n % 11}\n" for n in range(73)))
    assert sizes("recommend", str(tmp_path / "b")) == [5, 5, 5]
    (tmp_path / "b" / "more.txt").write_text("1 2\n")
    with pytest.raises(BadValue, match=r"got the folder .*It has more\.txt, taken\.txt"):
        tasks.build("recommend", data=str(tmp_path / "b")).streams()


def test_dialogues_of_several_files_without_splits_are_all_read(tmp_path):
    for n in range(7):
        turn = {"transcript": f"hello {n}", "system_transcript": "", "belief_state": []}
        dialogue = {"dialogue": [{**turn, "turn_label": [["food", f"kind {n}"]]}]}
        (tmp_path / f"part{n}.json").write_text(json.dumps([dialogue]))
    assert sum(sizes("dialogue", str(tmp_path))) == 7


def test_a_file_in_utf16_is_told_its_own_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("some text\n".encode("utf-16"))
    with pytest.raises(BadValue, match="for instance utf-16"):
        read_lines(tmp_path / "a.txt")
    with pytest.raises(BadValue, match=r'"reply\(encoding=utf-16\)"|"reply\(encoding=\'utf-16\'\)"'):
        tasks.build("reply", data=str(tmp_path / "a.txt")).examples("train")


def test_two_columns_of_one_name_are_refused_where_one_of_them_is_read(tmp_path):
    """By number the second was asked for, and by its name the first was read."""
    (tmp_path / "a.csv").write_text("text,text,label\n" + "".join(f"a{n},b{n},{n % 2}\n" for n in range(31)))
    for options in ({}, {"text_column": 2}):
        with pytest.raises(BadValue, match=r"a\.csv:1: two columns are called 'text'"):
            tasks.build("classify", data=str(tmp_path / "a.csv"), **options).examples("train")
