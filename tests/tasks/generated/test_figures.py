"""Sentences and questions about scenes: every one is true, worked out anew from the pixels and the boxes."""

import math
import re

import numpy as np
import pytest

from regard_workbench import tasks
from regard_workbench.tasks.caption import scene
from regard_workbench.tasks.generated.figure_questions import COLOURS, Figure, answered
from regard_workbench.tasks.generated.figure_sentences import NUMBERS, is_clear, sentences
from regard_workbench.tasks.pictures.written_digits import images, numbers_of

GRAMMAR = [
    (r"a (\w+) left of a (\w+)", "left"),
    (r"a (\w+) right of a (\w+)", "right"),
    (r"there is a (\w+) to the left of a (\w+)", "left"),
    (r"there is a (\w+) to the right of a (\w+)", "right"),
    (r"a (\w+) above a (\w+)", "above"),
    (r"a (\w+) below a (\w+)", "below"),
    (r"there is a (\w+) on top and a (\w+) below", "above"),
    (r"a (\w+) with a (\w+) above it", "below"),
]


def read(sentence):
    """The names and the relation of a sentence of the grammar."""
    alone = re.fullmatch(r"a (\w+) alone|there is only a (\w+)", sentence)
    if alone:
        return next(filter(None, alone.groups())), None, "alone"
    (found,) = [(*match.groups(), what) for form, what in GRAMMAR if (match := re.fullmatch(form, sentence))]
    return found


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_sentence_about_a_scene_is_true_of_its_digits(split):
    for index in range(60):
        made = scene(0, split, index)
        names = [NUMBERS[digit] for digit in made.labels]
        x, y = (made.boxes[:, 0] + made.boxes[:, 2]) / 2, (made.boxes[:, 1] + made.boxes[:, 3]) / 2
        for sentence in sentences(made.labels, made.boxes.tolist()):
            first, second, relation = read(sentence)
            if relation == "alone":
                assert names == [first]
                continue
            assert sorted([first, second]) == sorted(names)
            ways = [(0, 1), (1, 0)] if first == second else [(names.index(first), names.index(second))]
            truths = {"left": x, "right": -x, "above": y, "below": -y}[relation]
            assert any(truths[one] < truths[other] for one, other in ways), sentence
            across, down = abs(x[0] - x[1]), abs(y[0] - y[1])
            assert (across > down) == (relation in ("left", "right"))


def test_scenes_show_digits_of_their_own_split_and_are_always_the_same():
    pixels, digits = images()
    for split in ("train", "validation", "test"):
        made = scene(0, split, 7)
        assert np.array_equal(made.picture, scene(0, split, 7).picture)
        assert set(made.labels) <= {digits[number] for number in numbers_of(split)}
    assert not np.array_equal(scene(0, "train", 7).picture, scene(1, "train", 7).picture)
    assert sum(map(len, map(numbers_of, ("train", "validation", "test")))) == len(pixels)


def test_figures_that_are_as_far_beside_as_below_each_other_are_not_described():
    assert not is_clear([(0, 0, 4, 4), (10, 12, 14, 16)]) and is_clear([(0, 0, 4, 4), (10, 5, 14, 9)])
    assert is_clear([(0, 0, 4, 4)])


def by_brute_force(kind, colour, figures, size):
    """The answer from loops over all figures; None where two answers are within a pixel."""
    asked = next(one for one in figures if one.colour == colour)
    if kind == "what":
        return asked.what
    if kind == "left":
        return "yes" if asked.x < size / 2 else "no"
    if kind == "top":
        return "yes" if asked.y < size / 2 else "no"
    if kind == "count":
        return str(len([one for one in figures if one.what == asked.what]))
    best, what = None, None
    for one in figures:
        if one.colour != colour:
            away = math.sqrt((one.x - asked.x) ** 2 + (one.y - asked.y) ** 2)
            away = away if kind == "nearest" else -away
            if best is None or away < best:
                best, what = away, one.what
    return what


def found_in(pixels):
    """The figures of a scene of shapes, read off its pixels: colour, middle, and whether the corners are filled."""
    found = []
    for name, colour in COLOURS.items():
        near = (np.abs(pixels / 255 - np.array(colour)) < 0.02).all(-1)
        if near.any():
            rows, columns = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
            corner = near[rows[0], columns[0]]
            middle = (columns[0] + columns[-1] + 1) / 2, (rows[0] + rows[-1] + 1) / 2
            found.append(Figure(name, "square" if corner else "circle", *middle))
    return found


WORDINGS = {
    r"what is the (\w+) one": "what",
    r"is the (\w+) one on the left": "left",
    r"is the (\w+) one at the top": "top",
    r"what is nearest to the (\w+) one": "nearest",
    r"what is furthest from the (\w+) one": "furthest",
    r"how many are like the (\w+) one": "count",
}


@pytest.mark.parametrize(("options", "objects"), [("", 4), ("(size=48, objects=6)", 6)])
def test_every_question_has_the_answer_that_brute_force_reads_off_the_pixels(options, objects):
    task = tasks.build(f"ask{options}")
    seen = set()
    for index in range(300):
        example = task.examples("validation")[index]
        figures = found_in(example.pixels)
        assert len(figures) == objects == len({one.colour for one in figures})
        ((kind, colour),) = [
            (kind, match[1])
            for form, kind in WORDINGS.items()
            if (match := re.fullmatch(form, " ".join(example.question)))
        ]
        answer = task.fitted.labels[example.answer]
        assert answer == by_brute_force(kind, colour, figures, task.size), (example.question, figures)
        relational = kind in ("nearest", "furthest", "count")
        assert example.kind == (f"relational {kind}" if relational else kind)
        assert relational == (index % 2 == 0)
        seen.add((kind, answer))
    assert {kind for kind, _ in seen} == set(WORDINGS.values()) and len(seen) >= 13


def test_an_answer_that_is_not_clear_by_a_pixel_is_not_asked_for():
    asked = Figure("red", "circle", 20, 20)
    near = [
        asked,
        Figure("blue", "square", 26, 20),
        Figure("green", "circle", 20, 26.5),
        Figure("grey", "square", 9, 9),
    ]
    assert answered("nearest", asked, near, 48) is None, "6 and 6.5 pixels away, and not alike"
    assert answered("nearest", asked, [*near[:2], near[2]._replace(what="square"), near[3]], 48) == "square"
    assert answered("left", asked._replace(x=23.5), near, 48) is None
    assert answered("left", asked, near, 48) == "yes" and answered("count", asked, near, 48) == "2"
    assert answered("furthest", asked, near, 48) == "square"


def test_scenes_of_digits_name_the_digits_of_their_split():
    task = tasks.build("ask(figures=digits, objects=4)")
    _, made = task.scene("test", 3)
    assert len(made.figures) == 4 and {one.what for one in made.figures} <= set(NUMBERS)
    assert set(NUMBERS) <= set(task.fitted.labels) and {"yes", "no", "1", "4"} <= set(task.fitted.labels)
