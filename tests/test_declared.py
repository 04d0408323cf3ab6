"""Options declared once: the signature, the checks, the meanings and the types of text that one line gives."""

import inspect
import pickle

import pytest

from regard.errors import BadType, BadValue
from regard.support.arguments import share, whole_number
from regard.support.declared import Declared, at_least, one_of, option
from regard.support.options import read_options
from regard_workbench import tasks
from regard_workbench.cli.common.docstring import meanings
from regard_workbench.tasks.parts.data import TaskData

ENCODING = option("how files are encoded", default="utf-8", last=True)


class Files(Declared):
    data: str | None = option("files", default=None)
    encoding: str = ENCODING
    seed: int = option("which lines are kept", whole_number, default=0, last=True)


class Letters(Files):
    level: str = option("pieces", one_of(("word", "character")), default="word")
    seed: int = option("which letters are drawn", whole_number, default=7)
    longest: int | None = option("letters of a text", at_least(1), default=None)
    hide: float = option("share that is hidden", share, default=0.0)

    def check_options(self):
        if self.longest is not None and self.longest > 100 and self.level == "word":
            raise BadValue(f"longest: expected at most 100 words, got {self.longest}.")


class ByHand(Letters):
    def __init__(self, text="a", **options):
        super().__init__(**options)
        self.text = text


class Needs(Declared):
    size: int = option("pixels of a side", at_least(1))


def test_the_signature_is_that_of_the_declarations_and_shared_ones_come_last():
    parameters = inspect.signature(Letters).parameters
    assert list(parameters) == ["data", "level", "longest", "hide", "encoding", "seed"]
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters.values())
    assert parameters["longest"].annotation == int | None and parameters["seed"].default == 7
    assert list(inspect.signature(Files).parameters) == ["data", "encoding", "seed"]
    assert Files().seed == 0, "a subclass changes nothing of its parent"


def test_options_become_attributes_after_their_checks():
    letters = Letters(data="a.txt", hide=0.5)
    expected = {"data": "a.txt", "level": "word", "longest": None, "hide": 0.5, "encoding": "utf-8", "seed": 7}
    assert vars(letters) == expected
    assert vars(pickle.loads(pickle.dumps(letters))) == expected


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"longest": 0}, BadValue, "longest: expected a whole number of at least 1, got 0."),
        ({"longest": "2"}, BadType, "longest: expected a whole number, got '2' (str)."),
        ({"seed": None}, BadType, "seed: expected a whole number, got None (NoneType)."),
        ({"hide": 1}, BadValue, "hide: expected a fraction from 0 (included) to 1 (excluded), got 1."),
        ({"longest": 101}, BadValue, "longest: expected at most 100 words, got 101."),
    ],
)
def test_what_a_check_refuses_is_named(options, kind, words):
    with pytest.raises(kind) as caught:
        Letters(**options)
    assert str(caught.value) == words


def test_unknown_missing_and_nearly_right_ones_are_named():
    with pytest.raises(BadValue, match=r"option of Letters: there is no 'sed'.*seed"):
        Letters(sed=1)
    with pytest.raises(BadValue, match=r"level: there is no 'words'.*word"):
        Letters(level="words")
    with pytest.raises(BadType, match="size: Needs needs it: pixels of a side"):
        Needs()
    with pytest.raises(TypeError):
        Letters("a.txt")


def test_text_is_converted_to_the_declared_type():
    known = inspect.signature(Letters).parameters
    read = read_options("letters", Letters, {"longest": "none", "hide": "0.5", "seed": "1e2"}, known)
    assert read == {"longest": None, "hide": 0.5, "seed": 100}
    with pytest.raises(BadValue, match="longest: letters takes a whole number or None, got 'many'"):
        read_options("letters", Letters, {"longest": "many"}, known)


def test_the_meaning_is_that_of_the_last_declaration():
    assert meanings(Letters) == {
        "data": "files",
        "level": "pieces",
        "longest": "letters of a text",
        "hide": "share that is hidden",
        "encoding": "how files are encoded",
        "seed": "which letters are drawn",
    }
    assert "hide: share that is hidden" in Letters.__init__.__doc__


def test_a_class_may_write_its_constructor_by_hand():
    letters = ByHand("text", hide=0.25)
    assert letters.text == "text" and letters.hide == 0.25 and letters.level == "word"
    assert list(inspect.signature(ByHand).parameters) == ["text", "options"]

    class Below(ByHand):
        more: int = option("declared in vain", default=3)

    assert list(inspect.signature(Below).parameters) == ["text", "options"]


def test_an_option_that_a_subclass_has_a_value_for_is_none():
    class Shorter(Letters):
        level, seed = "character", 3
        whole: bool = option("all of it", default=False)

    class Below(Shorter):
        longest: int = option("letters", default=9)

    assert list(inspect.signature(Shorter).parameters) == ["data", "longest", "hide", "whole", "encoding"]
    assert list(inspect.signature(Below).parameters) == ["data", "longest", "hide", "whole", "encoding"]
    assert Below().seed == 3 and Shorter(longest=101).level == "character" and Letters().seed == 7
    with pytest.raises(BadValue, match="option of Below: there is no 'level'"):
        Below(level="word")


def test_every_option_of_a_task_has_a_meaning():
    for name in tasks.names():
        cls = tasks.TASKS[name]
        assert issubclass(cls, TaskData)
        known = meanings(cls)
        assert all(known.get(option) for option in inspect.signature(cls).parameters), name
