"""dates: every written date means its ISO form, no day is in two splits, exact match by hand."""

import datetime
import re

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks import dates
from regard_workbench.tasks.text.vocabulary import END, UNKNOWN
from tests.tasks.stand_ins import Fixed, certain, judged

RANDOM = torch.Generator()
NAMES = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
]


def understood(text):
    """All dates a reader could take a text for, found by another way than the task's."""
    words = re.findall(r"[a-z]+|\d+", text.lower())
    months = [n for w in words if w.isalpha() for n, name in enumerate(NAMES, 1) if len(w) >= 3 and name.startswith(w)]
    days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
    weekday = [days.index(d) for w in words for d in days if len(w) >= 3 and d.startswith(w)]
    numbers = [w for w in words if w.isdecimal()]
    if len(numbers) == 1 and len(numbers[0]) == 8:
        numbers = [numbers[0][:4], numbers[0][4:6], numbers[0][6:]]
    year = [int(w) for w in numbers if len(w) == 4]
    rest = [int(w) for w in numbers if len(w) < 4]
    if months:
        options = [(months[0], rest[0])]
    elif len(numbers[0]) == 4:
        options = [tuple(rest)]
    else:
        options = [tuple(rest), tuple(reversed(rest))]
    found = {(m, d) for m, d in options if 1 <= m <= 12}
    every = {datetime.date(year[0], m, d) for m, d in found}
    assert all(day.weekday() == weekday[0] for day in every if weekday), f"wrong weekday: {text}"
    return {day.isoformat() for day in every}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_date_can_be_understood_in_one_way(split):
    lengths = []
    for index in range(700):
        text, iso = dates.date_pair(split, index)
        assert understood(text) == {iso}, text
        lengths.append(len(text))
    assert max(lengths) <= 30


def test_all_forms_fit_and_use_known_characters():
    task = tasks.build("dates")
    for day in (datetime.date(2000, 9, 22), datetime.date(1999, 9, 30), datetime.date(1957, 2, 27)):
        for form in dates.WORDED + dates.YEAR_FIRST + dates.NUMBERED:
            text = dates.written(day, form)
            for variant in (text, text.lower(), text.upper()):
                ids = task.encode(variant).source
                assert UNKNOWN not in ids and len(ids) <= 30
                assert task.fitted.source_vocabulary.decode(ids) == variant


def test_no_day_is_in_two_splits_and_none_is_missing():
    splits = [set(dates.days(split)) for split in ("train", "validation", "test")]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 73_049
    assert all(abs(len(part) / 73_049 - share) < 0.01 for part, share in zip(splits, (0.8, 0.1, 0.1), strict=True))


def test_ordinals():
    assert [dates.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "22nd",
        "23rd",
        "30th",
        "31st",
    ]


def test_a_target_is_the_iso_date_and_the_end():
    task = tasks.build("dates")
    pair = task.examples("validation")[3]
    assert len(pair.target) == task.problem.answer.length == 11 and pair.target[-1] == END
    assert task.decode(pair.target) == pair.reference == dates.date_pair("validation", 3)[1]
    assert task.output_pieces(pair.target)[4::3] == ["-", "-", "</s>"]
    assert task.input_pieces(task.encode("3 May")) == list("3 May")


def test_exact_match_compares_what_the_model_writes_by_itself():
    task = tasks.build("dates", validation_size=7)
    batch = task.collate(list(task.examples("validation")), RANDOM)
    answers = [pair.target for pair in task.examples("validation")]
    answers[2] = [*answers[2][:3], END]
    answers[5] = answers[4]
    model = Fixed(lambda b: certain(b.targets, 16), lambda b: answers)
    found = judged(task, model, batch)
    assert found["exact_match"] == pytest.approx(5 / 7) and found["accuracy"] == 1.0
    assert model.asked[0].targets is None and model.asked[0].target_keep is None, "no answer is shown"
    assert torch.equal(model.asked[0].inputs, batch.inputs)


def test_anything_may_be_typed():
    task = tasks.build("dates")
    assert UNKNOWN in task.encode("3 Máy 1979 😀\x00").source
    batch = task.collate([task.encode("3rd of May, 1979"), task.encode("x")], RANDOM)
    assert batch.targets is None and batch.keep.sum().item() == 17
    with pytest.raises(BadValue, match="--text: expected some text"):
        task.encode("  ")
    with pytest.raises(BadValue, match=r"--text: expected at most 32 character pieces, got 33"):
        task.encode("3" * 33)


def test_sizes_of_validation_and_test_are_options():
    task = tasks.build("dates", validation_size=13, test_size=17)
    assert len(task.examples("validation")) == 13 and len(task.examples("test")) == 17
    with pytest.raises(BadValue, match="split: there is no 'dev'"):
        task.examples("dev")
