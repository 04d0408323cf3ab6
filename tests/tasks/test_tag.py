"""tag: CoNLL columns in BIO and IOB1, what is wrong with a file, what training changes in a batch."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.formats.conll import TagsRepaired
from regard_workbench.tasks.formats.splits import named_split
from regard_workbench.tasks.text.vocabulary import PADDING, UNKNOWN
from regard_workbench.tasks.text.word_parts import WordsWithParts, parts_of
from regard_workbench.tasks.text.word_shapes import shape

BIO = """\
Anna\tB-person
Berg\tI-person
left\tO

Oslo\tB-place
,\tO
"""


def written(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.conll").write_text(text)
    return str(folder)


def three(folder, train=BIO, dev=BIO, test=BIO, **options):
    return tasks.build("tag", data=written(folder, train=train, dev=dev, test=test), **options)


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def tags_of(task, split="train"):
    return [task.output_pieces(one.tags) for one in task.examples(split)]


def test_columns_may_stand_between_tabs_or_spaces_and_only_first_and_last_count(tmp_path):
    tabs = three(tmp_path)
    spaced = three(
        tmp_path, train="Anna NNP B-NP B-person\nBerg NNP I-NP I-person\nleft VBD B-VP O\n\nOslo N N B-place\n"
    )
    assert tags_of(tabs) == [["B-person", "I-person", "O"], ["B-place", "O"]]
    assert tags_of(spaced) == [["B-person", "I-person", "O"], ["B-place"]]
    assert spaced.examples("train")[0].words == ("Anna", "Berg", "left")


def test_blank_lines_with_a_tab_and_marks_of_documents_separate(tmp_path):
    task = three(tmp_path, train="-DOCSTART-\tO\n\nAnna\tB-person\n\t\n\n\nOslo\tB-place\n")
    assert [one.words for one in task.examples("train")] == [("Anna",), ("Oslo",)]


def test_iob1_is_recognised_and_read_as_bio(tmp_path):
    iob1 = "Anna I-person\nBerg I-person\nOtto B-person\nin O\nOslo I-place\n"
    task = three(tmp_path, train=iob1, dev=iob1, test=iob1)
    assert tags_of(task) == [["B-person", "I-person", "B-person", "O", "B-place"]]
    assert task.fitted.tags == ("O", "B-person", "I-person", "B-place", "I-place")


WRONG = [
    ("Anna\tB-person\nBerg\n", r"train.conll:2: expected a word and a tag in columns, got 'Berg'"),
    ("Anna\tN\tB-person\nBerg\tI-person\n", r"train.conll:2: expected 3 columns as in the first line, got 2"),
    ("Anna\tB-person\n\tO\n", r"train.conll:2: the word is empty"),
    ("Anna\tPER\n", r"train.conll:1: expected the tag O, B-TYPE or I-TYPE in the last column, got 'PER'"),
    ("Anna\tS-person\n", r"train.conll:1: expected the tag O.*IOBES, BILOU"),
    ("-DOCSTART- O\n\n", r"train.conll: holds no sentence"),
    ("\n\n", r"train.conll: is empty"),
    ("in\tO\n", r"expected tags such as B-person, got only O"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, message):
    with pytest.raises(BadValue, match=message):
        three(tmp_path, train=text)


# As in public copies of CoNLL-2003: IOB1 with a few B- after O.
MIXED = "Rome I-place\nin O\n\nOslo I-place\nBergen B-place\n\nRome I-place\nthe O\nAtlanta B-other\nGames I-other\n"


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        (None, r"^2 of 17 tags are not IOB1, .*train\.conll:9 \('B-other' after 'O', where IOB1 has 'I-other'\)"),
        ("iob1", r"^2 of 17 tags are not IOB1"),
        (
            "bio",
            r"^7 of 17 tags are not BIO, .*train\.conll:1 \('I-place' after the beginning of the sentence, where BIO "
            r"has 'B-place'\); read by the rules of conlleval",
        ),
    ],
)
def test_a_mixture_of_schemes_is_read_as_conlleval_reads_it_and_what_was_repaired_is_said(tmp_path, scheme, words):
    with pytest.warns(TagsRepaired, match=words) as told:
        task = three(tmp_path, train=MIXED, dev=MIXED, test="Rome I-place\n", scheme=scheme)
        read = tags_of(task)
    assert read == [["B-place", "O"], ["B-place", "B-place"], ["B-place", "O", "B-other", "I-other"]]
    assert len(told) == 1


def test_a_scheme_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(BadValue, match="scheme: there is no 'iobes'"):
        three(tmp_path, scheme="iobes")


def test_more_types_than_a_model_can_score_pairs_of_are_refused(tmp_path):
    many = "".join(f"w{number} B-t{number}\n\n" for number in range(503))
    with pytest.raises(BadValue, match=r"train\.conll: the tags of these files have 505 types .* at most 500"):
        three(tmp_path, train=many)


def test_a_type_that_training_does_not_know_is_named_with_its_line(tmp_path):
    task = three(tmp_path, test="in\tO\nAcme\tB-company\n")
    with pytest.raises(BadValue, match=r"test.conll:2: the type of 'B-company' does not occur.*'person', 'place'"):
        task.examples("test")


def test_splits_are_found_in_names_and_taken_from_training_where_they_are_missing(tmp_path):
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        (tmp_path / name).write_text(BIO)
    assert {split: len(tasks.build("tag", data=tmp_path).examples(split)) for split in ("train", "test")} == {
        "train": 2,
        "test": 2,
    }
    alone = tmp_path / "some.conll"
    alone.write_text("\n\n".join(f"name{n} B-person\nspoke O" for n in range(40)) + "\n")
    task = tasks.build("tag", data=str(alone))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [32, 4, 4]
    (tmp_path / "another_train.conll").write_text(BIO)
    with pytest.raises(BadValue, match="are both called train"):
        tasks.build("tag", data=tmp_path)


def test_batches_hold_words_and_the_characters_of_each(tmp_path):
    task = three(tmp_path, word_length=5, hide_rare=0.0)
    batch = task.collate(task.examples("train"), seeded())
    assert batch.streams["words"].data.tolist()[1][2] == PADDING
    assert batch.keep.tolist() == [[True] * 3, [True, True, False]]
    letters = batch.streams["characters"].data
    assert letters.shape == (2, 3, 5)
    assert task.forms.characters.pieces(letters[0, 1].tolist()) == ["B", "e", "r", "g", "<pad>"], "capitals are kept"
    assert task.forms.words.pieces(batch.inputs[0].tolist()) == ["anna", "berg", "left"], "words are in lower case"
    assert batch.notes["tags"][1] == ("B-place", "O")


def test_a_long_word_is_read_at_both_ends(tmp_path):
    task = three(tmp_path, train="Reykjavik\tB-place\nOslo\tB-place\n", word_length=5)
    letters = task.collate(task.examples("train"), seeded()).streams["characters"].data
    assert "".join(task.forms.characters.pieces(letters[0, 0].tolist())) == "Revik"


def test_training_hides_rare_words_more_often_and_leaves_their_characters(tmp_path):
    common = "Anna\tB-person\nleft\tO\n\n" * 9 + "Otto\tB-person\nleft\tO\n"
    task = three(tmp_path, train=common, test=common, hide_rare=1.0)
    (rare,) = [one for one in task.examples("train") if one.words[0] == "Otto"]
    hidden, letters = [], set()
    for seed in range(200):
        batch = task.collate([rare], seeded(seed))
        hidden.append((batch.inputs[0] == UNKNOWN).tolist())
        letters.add(tuple(batch.streams["characters"].data.flatten().tolist()))
    shares = torch.tensor(hidden).float().mean(0).tolist()
    assert shares[0] == pytest.approx(1 / 2, abs=0.12) and shares[1] == pytest.approx(1 / 11, abs=0.07)
    assert len(letters) == 1
    test = task.collate(task.examples("test"), seeded())
    assert torch.equal(test.inputs, task.collate(task.examples("test"), seeded(9)).inputs)


def test_entities_are_exchanged_for_others_of_their_type(tmp_path):
    text = "Anna B-person\nBerg I-person\nleft O\nOslo B-place\n\nOtto B-person\nsaw O\nNew B-place\nYork I-place\n"
    task = three(tmp_path, train=text, exchange=0.99, hide_rare=0.0)
    seen = set()
    for seed in range(60):
        batch = task.collate(task.examples("train")[:1], seeded(seed))
        words = tuple(task.forms.words.pieces(batch.inputs[0].tolist()))
        seen.add(words)
        tags = batch.notes["tags"][0]
        assert len(tags) == len(words) and tags[words.index("left")] == "O"
        assert ("otto" in words) == (tags[:2] == ("B-person", "O"))
        assert ("york" in words) == (tags[-2:] == ("B-place", "I-place"))
    assert len(seen) == 4, "two persons × two places"
    test = task.collate(task.examples("test"), seeded())
    assert test.notes["tags"][0] == ("B-person", "I-person", "O"), "only training sentences are changed"


def test_models_of_one_stream_are_given_the_words_alone(tmp_path):
    task = three(tmp_path)
    assert [list(problem.streams) for problem in task.problems()] == [["words", "characters", "shapes"], ["words"]]
    task.pose(task.problems()[1])
    assert list(task.collate(task.examples("test"), seeded()).streams) == ["words"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Anna", "Xx"),
        ("anna", "x"),
        ("NASA", "X"),
        ("McDonald's", "XxXx'x"),
        ("iPhone6", "xXxd"),
        ("2017", "d"),
        ("@bob_3", "@x_d"),
        (":-)", ":-)"),
        ("Ärger", "Xx"),
        ("東京", "x"),
        ("", ""),
        ("a.b.c.d.e.f.", "x.x.x.x."),
    ],
)
def test_the_shape_of_a_word_writes_runs_of_one_sort_once(word, expected):
    assert shape(word) == expected


def test_shapes_seen_three_times_in_training_are_known_and_an_earlier_run_has_none(tmp_path):
    task = three(tmp_path, train=f"{BIO}\n{BIO}")
    counts = Counter(shape(word) for row in task.rows["train"] for word in row.words)
    assert set(task.streams()) == {"words", "characters", "shapes"}
    assert set(task.forms.shapes.entries) == {form for form, count in counts.items() if count >= 3}
    batch = task.collate([task.parse({"text": "Nobody nobody #%&"})], seeded())
    expected = [task.forms.shapes.encode(form)[0] for form in ("Xx", "x")]
    assert batch.streams["shapes"].data.tolist() == [[*expected, 1]]
    again = three(tmp_path, train=f"{BIO}\n{BIO}")
    again.restore({name: value for name, value in task.state().items() if name != "shapes"})
    assert set(again.streams()) == {"words", "characters"}
    again.restore(task.state())
    assert again.streams() == task.streams()


def test_words_with_parts_keep_them_where_the_word_is_hidden(tmp_path):
    task = three(tmp_path, parts=97, hide_rare=1e9)
    words = task.streams()["words"]
    assert isinstance(words, WordsWithParts) and words.parts == 97
    batch = task.collate(task.examples("train"), seeded())
    assert batch.inputs.shape == (2, 3, 21) and (batch.inputs[batch.keep][:, 0] == UNKNOWN).all()
    assert batch.inputs[0, 1, 1:].tolist() == parts_of(["berg"], 97)[0].tolist(), "in lower case, as the word"
    assert (batch.inputs[1, 2] == 0).all(), "padding has none"
    again = three(tmp_path)
    again.restore(task.state())
    assert again.streams() == task.streams()


def test_a_typed_sentence_is_shown_with_its_entities_in_brackets(tmp_path):
    task = three(tmp_path)
    example = task.parse({"text": "Anna Nobody left Oslo"})
    numbers = [task.fitted.tags.index(tag) for tag in ("B-person", "I-person", "O", "B-place")]
    assert task.answer_text(numbers, example) == "[Anna Nobody](person) left [Oslo](place)"
    read = task.understood({"text": ""}, example)
    assert read.known == [True, False, True, True] and "1 of 4 words are unknown" in read.notes[0]
    assert task.collate([example], seeded()).targets is None
    with pytest.raises(BadValue, match="--text: expected a sentence, got none"):
        task.parse({"text": "  "})


def test_state_restores_a_task_whose_files_are_gone(tmp_path):
    task = three(tmp_path, lower=False, word_length=7)
    state = json.loads(json.dumps(task.state()))
    gone = tasks.TASKS["tag"](data="/nowhere")
    gone.restore(state)
    assert gone.problems() == task.problems() and gone.state() == state
    gone.pose(gone.problems()[0])
    text = {"text": "Anna Berg saw Oslo"}
    one, two = (made.collate([made.parse(text)], seeded()) for made in (task, gone))
    assert all(torch.equal(a, b) for a, b in zip(one.tensors().values(), two.tensors().values(), strict=True))


def test_generated_sentences_have_names_that_training_never_saw():
    task = tasks.build("tag")
    seen = {word for one in task.examples("train") for word in one.words}
    names = [
        word
        for one in task.examples("test")
        for word, tag in zip(one.words, task.output_pieces(one.tags), strict=True)
        if tag.startswith("B-")
    ]
    assert sum(name not in seen for name in names) > 0.5 * len(names)
    assert task.fitted.tags == ("O", "B-company", "I-company", "B-person", "I-person", "B-place", "I-place")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.conll", "train"),
        ("wnut17train.conll", "train"),
        ("emerging.dev.conll", "validation"),
        ("emerging.test.annotated", "test"),
        ("qa1_single-supporting-fact_train.txt", "train"),
        ("qa2_valid.txt.gz", "validation"),
        ("contest.txt", None),
        ("latest.conll", None),
        ("2017.conll", None),
    ],
)
def test_the_words_of_a_name_say_its_split(name, split):
    assert named_split(Path(name)) == split
