"""language: every token asked for once, hidden tokens as in BERT, completion by hand, splits and levels."""

import math

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.answers import HiddenTokens, NextToken
from regard_workbench.tasks.generated.story import story_text
from regard_workbench.tasks.measures import completion
from regard_workbench.tasks.text.vocabulary import BLANK, SPECIAL, UNKNOWN
from tests.tasks.stand_ins import Fixed, certain, judged, rows_of


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def masked(**options):
    task = tasks.build("language", **options)
    task.pose(task.problems()[1])
    return task


def test_every_token_but_the_first_is_asked_for_once():
    task = tasks.build("language", context=37)
    tokens = task.tokens("test").tolist()
    windows = task.examples("test")
    assert len(windows) == math.ceil((len(tokens) - 1) / 37)
    asked, given = [], []
    batch = task.collate(list(windows), seeded())
    assert batch.keep is None and batch.inputs.shape == (len(windows), 37), "nothing is padded"
    asked = batch.targets[batch.target_keep].tolist()
    given = batch.inputs[batch.target_keep].tolist()
    assert asked == tokens[1:] and given == tokens[:-1]
    alone = [task.collate([window], seeded()) for window in windows]
    assert [one.target_keep is None for one in alone] == [True] * (len(windows) - 1) + [False]
    assert alone[-1].target_keep.sum() == (len(tokens) - 1) % 37


@pytest.mark.parametrize("overlap", [0.25, 0.5, 0.9])
def test_with_overlap_every_token_is_asked_for_once_and_has_tokens_before_it(overlap):
    task = tasks.build("language", context=37, overlap=overlap)
    tokens = task.tokens("test").tolist()
    batch = task.collate(list(task.examples("test")), seeded())
    assert batch.targets[batch.target_keep].tolist() == tokens[1:]
    least = batch.target_keep[1:].int().argmax(1)  # tokens read before the first that is asked for
    assert int(least.min()) == 37 - round(37 * (1 - overlap)) and bool(batch.target_keep[0].all())


def test_training_windows_begin_elsewhere_each_time_within_half_a_window():
    task = tasks.build("language", context=31)
    ids, windows = task.tokens("train"), task.examples("train")
    assert len(windows) == math.ceil((len(ids) - 1) / 31)
    places = set()
    for seed in range(200):
        batch = task.collate([windows[7]], seeded(seed))
        assert batch.target_keep is None, "everything in it is asked for"
        begin = next(i for i in range(7 * 31 - 15, 7 * 31 + 16) if torch.equal(ids[i : i + 31], batch.inputs[0]))
        places.add(begin)
        assert torch.equal(ids[begin + 1 : begin + 32], batch.targets[0])
    assert min(places) == 7 * 31 - 15 and max(places) == 7 * 31 + 15 and len(places) > 25
    for window in (windows[0], windows[len(windows) - 1]):  # nothing before the text, nothing behind it
        assert all(task.collate([window], seeded(s)).inputs.shape == (1, 31) for s in range(40))
    again = [task.collate([windows[7]], seeded(5)).inputs for _ in range(2)]
    assert torch.equal(*again)


def test_hidden_tokens_can_be_the_objective():
    assert [type(one) for one in tasks.build("language", objective="hidden").answers()] == [HiddenTokens, NextToken]
    with pytest.raises(BadValue, match=r"hidden"):
        tasks.build("language", objective="hiden")
    with pytest.raises(BadValue, match=r"overlap"):
        tasks.build("language", overlap=1.0)


def test_a_text_shorter_than_the_context_is_one_window(tmp_path):
    (tmp_path / "train.txt").write_text("some text\n" * 9)
    (tmp_path / "valid.txt").write_text("text\n")
    (tmp_path / "test.txt").write_text("text some\n")
    task = tasks.build("language", data=tmp_path, context=17)
    (window,) = task.examples("validation")
    assert window.repeated == 0 and task.decode(window.tokens.tolist()) == "text\n"
    mixed = task.collate([window, task.examples("train")[0]], seeded())
    assert mixed.keep.sum(1).tolist() == [4, 17] == mixed.target_keep.sum(1).tolist()
    assert rows_of(mixed)[0] == window.tokens[:-1].tolist()


def test_the_stories_are_the_same_always_and_split_in_file_order():
    text = story_text()
    assert 200_000 <= len(text) < 201_000 and text.isascii()
    task = tasks.build("language")
    parts = [task.texts[split] for split in ("train", "validation", "test")]
    assert "".join(parts) == text and all(part.endswith("\n") for part in parts)
    assert [round(len(part) / len(text), 2) for part in parts] == [0.9, 0.05, 0.05]
    assert task.decode(task.tokens("test").tolist()) == parts[2]


@pytest.mark.parametrize(("level", "size"), [("character", None), ("word", None), ("word", 60), ("bpe", 400)])
def test_levels_differ_and_only_training_text_makes_the_vocabulary(tmp_path, level, size):
    for split, text in (("train", "aaa bbb aaa\n" * 41), ("valid", "aaa zzz\nbbb\n"), ("test", "qqq\n")):
        (tmp_path / f"{split}.txt").write_text(text)
    task = tasks.build("language", data=str(tmp_path), level=level, vocabulary_size=size)
    ids = task.tokens("validation").tolist()
    if level == "bpe":
        assert task.decode(ids) == "aaa zzz\nbbb\n"
    else:
        assert UNKNOWN in ids and UNKNOWN not in task.tokens("train").tolist()
    if level == "word":
        assert len(ids) == 5, "words, and the ends of two lines"
    assert task.problem.answer.outputs == task.problem.inputs.count == len(task.fitted.vocabulary)


def test_fifteen_in_a_hundred_are_hidden_most_of_them_blank():
    task = masked(context=101, shift=False)
    examples = list(task.examples("train"))[:400]
    batch = task.collate(examples, seeded(1))
    assert (batch.target_keep.sum(1) == 15).all(), "15 % of 101"
    originals = torch.stack([window.tokens[:101] for window in examples])
    assert torch.equal(batch.targets, originals) and batch.keep is None
    assert torch.equal(batch.inputs[~batch.target_keep], originals[~batch.target_keep])
    shown, true = batch.inputs[batch.target_keep], originals[batch.target_keep]
    blank = (shown == BLANK).float().mean().item()
    same = (shown == true).float().mean().item()
    other = 1 - blank - same
    assert abs(blank - 0.8) < 0.02 and abs(same - 0.1) < 0.02 and abs(other - 0.1) < 0.02
    assert (shown[shown != BLANK] >= len(SPECIAL)).all()
    assert batch.target_keep.float().mean(0).min() > 0.05, "anywhere in a window"


def test_what_is_hidden_comes_from_the_generator_alone():
    task = masked(context=31)
    examples = list(task.examples("test"))[:5]
    torch.manual_seed(1)
    one = task.collate(examples, seeded(7))
    torch.manual_seed(2)
    two, three = task.collate(examples, seeded(7)), task.collate(examples, seeded(8))
    assert torch.equal(one.inputs, two.inputs) and not torch.equal(one.inputs, three.inputs)
    short = task.collate([type(examples[0])(torch.tensor([5, 6]))], seeded())
    assert short.target_keep.sum() == 1, "something is always asked"


def test_perplexity_and_bits_per_character_follow_from_the_loss():
    task = tasks.build("language", context=37)
    batch = task.collate(list(task.examples("validation")[:3]), seeded())
    count = task.problem.answer.outputs
    even = judged(task, Fixed(lambda b: torch.zeros(*b.targets.shape, count)), batch)
    assert even["perplexity"] == pytest.approx(count) and even["loss"] == pytest.approx(math.log(count))
    assert even["bits_per_character"] == pytest.approx(math.log2(count))
    words = tasks.build("language", level="word")
    assert "bits_per_character" not in [metric.name for metric in words.metrics()]
    assert not words.metric.higher_is_better and words.metric.name == "perplexity"


def test_sentences_end_where_people_end_them():
    text = 'He came. "Is it 3.5?" she said! Then\nA line without end\n\nX = y .\nLast'
    assert completion.sentences_of(text) == [
        "He came.",
        '"Is it 3.5?"',
        "she said!",
        "Then",
        "A line without end",
        "X = y .",
        "Last",
    ]


@pytest.mark.parametrize("kind", [0, 1], ids=["language", "masked"])
def test_completion_judges_the_second_half_of_each_sentence(tmp_path, kind):
    (tmp_path / "train.txt").write_text("abcdefg. hij.\n" * 11)
    (tmp_path / "valid.txt").write_text("abc.\n")
    (tmp_path / "test.txt").write_text("abcdefg. hij! ab. cdc.\n")
    task = tasks.build("language", data=tmp_path)
    task.pose(task.problems()[kind])
    sentences = ["hij!", "cdc.", "abcdefg."]  # "ab." is too short to have an opening; short ones come first
    batches = task.completion_batches()
    assert [batch.size for batch in batches] == [2, 1] and all(batch.keep is None for batch in batches)
    letters = task.fitted.vocabulary.entries
    asked = [token for batch in batches for token in batch.targets[batch.target_keep].tolist()]
    expected = "".join(sentence[len(sentence) // 2 :] for sentence in sentences)
    assert asked == task.fitted.vocabulary.encode(expected)
    if kind:
        shown = task.output_pieces(batches[1].inputs[0].tolist())
        assert shown == [*"abcd", *["<mask>"] * 4]
    else:
        given = [row for batch in batches for row in rows_of(batch)]
        assert given == [task.fitted.vocabulary.encode(sentence[:-1]) for sentence in sentences]
    torch.manual_seed(3)
    count = len(letters) + 5
    table = torch.randn(8, count, count)  # logits by position and the token there
    model = Fixed(
        lambda b: table[torch.arange(b.inputs.shape[1]), b.inputs],
        lambda b: greedy(table, b.inputs.tolist(), 4 if b.inputs.shape[1] == 4 else 2),
    )
    found = {metric.name: metric.value(state) for metric, state in task.completed(model, batch_size=7)}
    expected = {True: [0, 0.0, 0], False: [0, 0.0, 0]}  # on the own prefix or not: right, cost, count
    for sentence in sentences:
        ids, half = task.fitted.vocabulary.encode(sentence), len(sentence) // 2
        hidden = [*ids[:half], *[BLANK] * (len(ids) - half)]
        own = [*ids[:half], *greedy(table, [ids[:half]], len(ids) - half)[0]]
        for forced, given in ((True, ids), (False, own)):
            for place in range(half, len(ids)):
                before = (place, hidden[place]) if kind else (place - 1, given[place - 1])
                odds = table[before].double().log_softmax(0)
                expected[forced][0] += int(odds.argmax()) == ids[place]
                expected[forced][1] -= float(odds[ids[place]])
                expected[forced][2] += 1
    for forced, prefix in ((False, ""), (True, "teacher_forced_")):
        if forced and kind:
            assert not any(name.startswith(prefix) for name in found), "hidden words have no prefix"
            continue
        right, cost, number = expected[forced]
        assert found[f"{prefix}completion_accuracy"] == pytest.approx(right / number)
        assert found[f"{prefix}completion_nll"] == pytest.approx(cost / number, rel=1e-6)
    assert kind or found["completion_nll"] != pytest.approx(found["teacher_forced_completion_nll"], rel=0.01)


def greedy(table, prompts, length):
    """What a model with these logits (place, token, next token) writes after each prompt."""
    found = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(length):
            ids.append(int(table[len(ids) - 1, ids[-1]].argmax()))
        found.append(ids[len(prompt) :])
    return found


def test_completion_does_not_depend_on_batches():
    task = tasks.build("language", level="word")
    count = task.problem.answer.outputs
    step = lambda ids: (ids * 7 + 3) % count  # noqa: E731

    class Rule(Fixed):
        def generate(self, batch, *, max_length, **options):
            self.written = lambda b: [_rolled(step, int(row[-1]), max_length) for row in b.inputs]
            return super().generate(batch)

    model = Rule(lambda b: certain(step(b.inputs), count, 2.0))
    one, many = (
        [metric.value(state) for metric, state in task.completed(model, batch_size=size, most=23)] for size in (1, 11)
    )
    assert len(one) == 4 and one == pytest.approx(many)


def _rolled(step, last, length):
    found = []
    for _ in range(length):
        last = step(last)
        found.append(last)
    return found


def test_files_in_a_folder_without_names_of_splits_are_joined_in_order(tmp_path):
    (tmp_path / "b.txt").write_text("second\n" * 50)
    (tmp_path / "a.txt").write_text("first\n" * 50)
    task = tasks.build("language", data=tmp_path)
    assert "".join(task.texts[s] for s in ("train", "validation", "test")) == "first\n" * 50 + "second\n" * 50


def test_one_missing_split_is_taken_from_the_end_of_training(tmp_path):
    (tmp_path / "train.txt").write_text("".join(f"line {n}\n" for n in range(200)))
    (tmp_path / "valid.txt").write_text("valid text\n")
    task = tasks.build("language", data=tmp_path)
    assert task.texts["validation"] == "valid text\n"
    assert task.texts["train"] + task.texts["test"] == "".join(f"line {n}\n" for n in range(200))
    assert 5 <= task.texts["test"].count("\n") <= 11


def test_a_prompt_is_read_to_its_end_and_comes_without_targets():
    task = tasks.build("language", context=5)
    prompt = task.encode("In the morning")
    assert task.input_pieces(prompt) == list("rning")
    batch = task.collate([prompt, task.encode("I")], seeded())
    assert batch.targets is None and batch.keep.sum() == 6
    hidden = masked(context=11).encode("a <mask>b<mask>")
    assert hidden.tokens.tolist().count(BLANK) == 2 and len(hidden) == 5
    with pytest.raises(BadValue, match="--text"):
        task.encode("")


def test_texts_too_short_and_missing_are_refused(tmp_path):
    for name, content, message in (
        ("empty.txt", "", "is empty"),
        ("one.txt", "x", "too short"),
        ("tiny.txt", "ab\n", "expected at least 2"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(BadValue, match=message):
            tasks.build("language", data=path).examples("validation")
    with pytest.raises(BadValue, match="there is no file"):
        tasks.build("language", data=tmp_path / "missing.txt")
    (tmp_path / "sub").mkdir()
    with pytest.raises(BadValue, match="has no text file"):
        tasks.build("language", data=tmp_path / "sub")


def test_hostile_text_is_learnt_like_any_other(tmp_path):
    text = "nul \x00\r\n👩‍👩‍👧‍👦 שלום\r\n" * 30 + "x" * 10_007 + "\n"
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    for level in ("character", "word", "bpe"):
        task = tasks.build("language", data=path, level=level, context=11)
        written = task.decode(task.tokens("train").tolist())
        assert written.startswith("nul \x00\n") and "👩‍👩‍👧‍👦 שלום" in written
