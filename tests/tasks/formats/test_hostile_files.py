"""Every reader under one net: crafted and damaged files are read, or refused in one line that names them."""

import ast
import random
import tracemalloc
import warnings
from pathlib import Path

import pytest

from regard.errors import BadValue, RegardError, Unsupported
from regard_workbench import tasks
from regard_workbench.tasks.formats import file_errors as net
from regard_workbench.tasks.formats import gold, graph_files, idx, pickles, stores, woz
from regard_workbench.tasks.formats.babi import read_questions
from regard_workbench.tasks.formats.file_errors import file_errors, reads_file
from regard_workbench.tasks.formats.tables import find_columns, labelled, read_table
from regard_workbench.tasks.sound.wav import read_sound
from tests.tasks.formats import crafted_files

CASES = list(crafted_files.cases())
READABLE = {"wav: odd bytes", "wav: no frame"}  # what is odd about them changes no sample
FOUND = ("an escaped key", "a list of that name inside", "the key twice", "that key in a text")


def kept(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)


def looked_through(task, data):
    """Every example of every split."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said about pictures and tags
        built = tasks.build(task, data=str(data))
        for split in ("train", "validation", "test"):
            for example in built.examples(split):
                built.length(example)


@pytest.mark.parametrize(("case", "task", "files", "given"), CASES, ids=[case[0] for case in CASES])
def test_a_crafted_file_is_read_or_refused_in_one_line_that_names_it(tmp_path, case, task, files, given):
    kept(tmp_path, files)
    try:
        looked_through(task, tmp_path / given)
    except RegardError as refusal:
        text = str(refusal)
        assert text.isprintable() and len(text) < 900, text
        assert any(name in text for name in files) or tmp_path.name in text, text
        readable = case in READABLE or case.removeprefix("woz: ") in (*FOUND, "half a character", "escape signs")
        assert ("1 example is too few" in text) == readable, text
    else:
        assert case in READABLE


def test_dialogues_are_found_by_their_key_wherever_other_keys_stand(tmp_path):
    """The regular rules of JSON: an escaped key is that key, of two equal keys the last counts."""
    for case in FOUND:
        (tmp_path / "a.json").write_text(crafted_files.WOZ[case])
        (dialogue,) = woz.read_dialogues(tmp_path / "a.json")
        assert [turn.user for turn in dialogue.turns] == ["hi there"] and dialogue.turns[0].line == 1


def test_a_user_who_does_not_exist_is_a_file_that_does_not_exist():
    with pytest.raises(BadValue, match=r"there is no file '~nosuchuser/x\.tsv'"):
        tasks.build("classify", data="~nosuchuser/x.tsv")


# The net itself.


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), r"^data: a\.bin does not fit into memory"),
        (OverflowError("int too large"), r"^data: a\.bin cannot be read: OverflowError: int too large\. Is it"),
        (KeyError(), r"^data: a\.bin cannot be read: KeyError\. Is it"),
        (OSError(5, "Input/output error"), r"^data: a\.bin cannot be read: Input/output error"),
        (RuntimeError("two\nlines \x1b[31m"), r"RuntimeError: two lines \\x1b\[31m"),
    ],
)
def test_whatever_a_reader_raises_names_the_file_in_one_line(raised, words):
    @reads_file
    def read(path):
        raise raised

    @reads_file
    def read_lines_of(path):
        yield 1
        raise raised

    for call in (lambda: read(Path("a.bin")), lambda: list(read_lines_of(Path("a.bin")))):
        with pytest.raises(BadValue, match=words) as refused:
            call()
        assert str(refused.value).isprintable()


def test_errors_of_regard_and_interrupts_pass_through_the_net():
    for raised in (BadValue("a"), Unsupported("b"), KeyboardInterrupt()):
        with pytest.raises(type(raised)) as caught, file_errors("a.bin"):
            raise raised
        assert caught.value is raised


def test_every_reader_of_a_file_is_under_the_net():
    """Except those of pictures, which name the option that gave the file and have a net of their own."""
    missing = []
    for path in sorted(Path(net.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith(("read", "load")):
                continue
            first = ast.unparse(node.args.args[0].annotation)
            under = any(getattr(one, "id", "") == "reads_file" for one in node.decorator_list)
            if ("Path" in first or "Data" in first) and not under and path.stem != "image_files":
                missing.append(f"{path.stem}.{node.name}")
    assert not missing


# A few bytes that ask for a machine: sizes that would show within seconds if they were made.

MOST = 48 * 2**20  # bytes that any of these may take


def doubled(levels):
    """A dictionary whose two values are the same dictionary, and so on: 2^levels, where each is walked through."""
    found = {}
    for _ in range(levels):
        found = {0: found, 1: found}
    return found


def class_of(number):
    return {"g.npz": crafted_files.npz(y=crafted_files.np.array([number, 0, 1] + [0] * 8))}


BOMBS = {
    "a dictionary of dictionaries": ("graph", lambda: crafted_files.planetoid(graph=doubled(19))),
    "a memo of 16 million": ("graph", lambda: crafted_files.planetoid(graph=b"\x80\x02Nr\xff\xff\xff\x00.")),
    "a class of 10 million": ("graph", lambda: class_of(10_000_000)),
    "a test node of 30 million": ("graph", lambda: crafted_files.planetoid(index="8\n9\n30000000\n")),
    "a billion features": (
        "graph",
        lambda: {"g.npz": crafted_files.npz(x_shape=crafted_files.np.array([crafted_files.NODES, 10**8]))},
    ),
    "a wide first node": (
        "graph",
        lambda: {"a.content": b"a " + b"1 " * 20_000 + b"x\n" + b"b 1 y\n" * 2_000, "a.cites": b"a b\n"},
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_few_bytes_take_no_memory_that_they_do_not_account_for(tmp_path, bomb):
    task, files = BOMBS[bomb]
    kept(tmp_path, files())
    tracemalloc.start()
    try:
        with pytest.raises(RegardError, match=tmp_path.name):
            looked_through(task, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_long_story_is_held_once_for_all_its_questions(tmp_path):
    count = 3001
    told = "".join(f"{n} Mary went {n}.\n" for n in range(1, count + 1))
    asked = "".join(f"{n} Where is Mary?\thall\t1\n" for n in range(count + 1, 2 * count + 1))
    (tmp_path / "qa1_train.txt").write_text(told + asked)
    tracemalloc.start()
    try:
        questions = list(read_questions(tmp_path / "qa1_train.txt"))
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20  # a list of the story for each would be 72 MB
    finally:
        tracemalloc.stop()
    assert [len(questions), len(questions[0].story), questions[-1].story[-2:]] == [
        count,
        count,
        [f"Mary went {count - 1}.", f"Mary went {count}."],
    ]


def test_lines_of_json_with_a_new_key_each_take_memory_of_their_number(tmp_path):
    count = 3001
    lines = [f'{{"k{n}": "x", "text": "t{n}", "label": "{n % 2}"}}' for n in range(count)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    tracemalloc.start()
    try:
        table = read_table(tmp_path / "a.jsonl", "utf-8", None, None)
        rows = list(labelled(table, find_columns(table, None, None)))
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20  # a cell for each line and key would be 72 MB
    finally:
        tracemalloc.stop()
    assert [(row.text, row.label) for row in rows[-2:]] == [("t2999", "1"), ("t3000", "0")]
    assert rows[0].line == 1 and table.width == count + 2


class Counted(str):
    """A text that counts how many of its characters were searched for line ends."""

    searched = 0

    def count(self, sign, start=0, end=None):
        end = len(self) if end is None else end
        Counted.searched += end - start
        return super().count(sign, start, end)


def test_the_lines_of_dialogues_are_counted_in_one_pass(tmp_path, monkeypatch):
    text = Counted("[" + ",\n".join([crafted_files.dialogue()[1:-1]] * 101) + "]")
    monkeypatch.setattr(woz, "read_text", lambda *given: text)
    found = woz.read_dialogues(tmp_path / "a.json")
    assert [one.line for one in found] == list(range(1, 102)) == [one.turns[0].line for one in found]
    assert 0 < Counted.searched <= len(text)


# Damage at random.


def damaged(draw, content):
    changed = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        changed[draw.randrange(len(changed))] = draw.choice([0, 255, 127, 128, 1, draw.randrange(256)])
    if draw.random() < 0.15:
        del changed[draw.randrange(len(changed)) :]
    if draw.random() < 0.15:
        at = draw.randrange(len(changed) + 1)
        changed[at:at] = draw.randbytes(draw.randint(1, 60))
    return bytes(changed)


def looked_into(path):
    with stores.opened(path) as store:
        for name in store.names((".png", ".wav", ".npy"))[:20]:
            store.read(name, 20_000_000)


PICKLE = crafted_files.planetoid()["ind.c.allx"]
FORMS = {
    "g.npz": (crafted_files.npz(crafted_files.zipfile.ZIP_STORED), graph_files.read_npz),
    "packed.npz": (crafted_files.npz(), graph_files.read_npz),
    "a.zip": (crafted_files.npz(), looked_into),
    "a.tar": (crafted_files.tar("7"), looked_into),
    "ind.x": (PICKLE, pickles.load_arrays),
    "a.gold": (b"1-2 3p4 5-6\n7-8\n", gold.read_gold),
    "a.wav": (crafted_files.wav(), lambda path: read_sound(path.read_bytes(), path.name)),
    "a.idx": (
        b"\0\0\x08\3\0\0\0\2\0\0\0\3\0\0\0\4" + b"x" * 24,
        lambda path: idx.read_idx(path.read_bytes(), path.name),
    ),
    "a.json": (crafted_files.WOZ["that key in a text"].encode(), woz.read_dialogues),
}


def damage(folder, name, draws):
    content, read = FORMS[name]
    draw = random.Random(name)
    for _ in range(draws):
        (folder / name).write_bytes(damaged(draw, content))
        try:
            read(folder / name)
        except RegardError as refusal:
            assert name in str(refusal) and str(refusal).isprintable()


@pytest.mark.parametrize("name", FORMS)
def test_damage_at_random_is_read_or_refused(tmp_path, name):
    damage(tmp_path, name, 23)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMS)
def test_much_damage_at_random_is_read_or_refused(tmp_path, name):
    damage(tmp_path, name, 2003)
