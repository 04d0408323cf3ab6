"""answer: bAbI files, damaged lines, errors of each task, noise, and stories that are typed."""

import json

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.formats.babi import kind_of, read_questions, words_of
from regard_workbench.tasks.generated.rooms import KINDS, NUMBERS, story
from regard_workbench.tasks.measures.kinds import ERROR, FAILED, error_of_kind
from tests.tasks.stand_ins import Fixed, certain, judged

ONE = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary took the milk.
5 What is Mary carrying?\tmilk,apple\t4 1
1 Sandra went to the garden.
2 Where is Sandra?\tgarden\t1
"""


def written(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return str(folder)


def built(folder, text=ONE, **options):
    files = {f"qa3_some-name_{split}": text for split in ("train", "valid", "test")}
    return tasks.build("answer", data=written(folder, **files), **options)


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def test_questions_see_the_sentences_before_them_in_their_story_and_no_questions(tmp_path):
    written(tmp_path, qa3_x_train=ONE)
    first, second, third = read_questions(tmp_path / "qa3_x_train.txt")
    assert tuple(first.story) == ("Mary moved to the bathroom.", "John went to the hallway.")
    assert tuple(second.story) == (*first.story, "Mary took the milk.")
    assert (second.question, second.answer) == ("What is Mary carrying?", "milk,apple")
    assert second.supports == (2, 0), "line 4 is the third sentence"
    assert tuple(third.story) == ("Sandra went to the garden.",) and third.kind == "qa3"
    assert (first.whole, second.whole, third.whole, third.line) == (1, 1, 2, 7)


def test_words_are_in_lower_case_without_punctuation():
    assert words_of("Where's Mary?  It is 7 o'clock - s,e.") == ["where's", "mary", "it", "is", "7", "o'clock", "s,e"]


def test_the_number_in_a_name_is_its_task(tmp_path):
    assert kind_of(tmp_path / "qa17_positional-reasoning_train.txt") == "qa17"
    assert kind_of(tmp_path / "mine_test.txt") == "mine"


DAMAGED = [
    ("Mary moved.\n", r":1: expected 'id text' with the id 1, got 'Mary moved.'"),
    ("1 Mary moved.\n3 John left.\n", r":2: expected the id 2, or 1 where a story begins, got 3"),
    ("2 Mary moved.\n", r":1: expected the id 1, got 2"),
    ("1 Mary moved.\n2 Where is Mary?\n", r":2: the question 'Where is Mary\?' has no answer"),
    ("1 Where is Mary?\thall\t1\n", r":1: supporting ids: expected those of earlier sentences.*got '1'"),
    ("1 Where is Mary?\thall\n", r":1: a question without a sentence before it"),
    ("1 Mary moved.\n2 Where is Mary?\t\t1\n", r":2: the answer of 'Where is Mary\?' is empty"),
    ("1 Mary moved.\n2 \thall\t1\n", r":2: expected 'id text'|:2: the question is empty"),
    ("1 Mary moved.\n2 Where?\thall\t7\n", r":2: supporting ids: .* got '7'"),
    ("1 Mary moved.\n2 Where?\thall\tone\n", r":2: supporting ids: .* got 'one'"),
    ("1 Mary moved.\n2 Where?\thall\t1\tmore\n", r":2: expected 'question TAB answer TAB ids', got 4 columns"),
    ("1 ...\n", r":1: expected a sentence, got '...'"),
    ("1 Mary moved.\n", r": holds no question"),
    ("", r": is empty"),
]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "qa1_damaged_train.txt"
    path.write_text(text)
    with pytest.raises(BadValue, match=f"qa1_damaged_train.txt(?:{message})"):
        list(read_questions(path))


def test_a_folder_without_stories_says_what_is_in_it(tmp_path):
    (tmp_path / "en").mkdir()
    with pytest.raises(BadValue, match=r"has no file that ends in .txt. It has the folders en"):
        tasks.build("answer", data=str(tmp_path))


def test_questions_of_one_story_stay_in_one_split(tmp_path):
    stories = "".join(
        f"1 Mary moved to room{n}.\n2 Where is Mary?\troom{n}\t1\n3 Where was Mary?\troom{n}\t1\n" for n in range(50)
    )
    task = tasks.build("answer", data=written(tmp_path, qa1_x_train=stories))
    found = {split: [one.story for one in task.examples(split)] for split in ("train", "validation", "test")}
    assert [len(part) for part in found.values()] == [80, 10, 10]
    assert len(set(found["train"]) | set(found["test"]) | set(found["validation"])) == 50
    assert all(part.count(one) == 2 for part in found.values() for one in part)


def test_a_batch_holds_sentences_as_rows_of_words(tmp_path):
    task = built(tmp_path, noise=0.0)
    batch = task.collate(task.examples("test"), seeded())
    told = batch.streams["story"]
    assert told.data.shape == (3, 3, 5) and told.keep.tolist() == [
        [True, True, False],
        [True] * 3,
        [True, False, False],
    ]
    assert task.fitted.vocabulary.pieces(told.data[1, 2].tolist()) == ["mary", "took", "the", "milk", "<pad>"]
    assert task.fitted.vocabulary.pieces(batch.streams["question"].data[0].tolist()) == ["where", "is", "mary", "<pad>"]
    assert [task.decode([n]) for n in batch.targets.tolist()] == ["bathroom", "milk,apple", "garden"]
    assert batch.notes["kind"] == ("qa3", "qa3", "qa3")


def test_only_the_last_sentences_are_read(tmp_path):
    task = built(tmp_path, sentences=2, noise=0.0)
    told = task.collate(task.examples("test")[1:2], seeded()).streams["story"].data
    assert task.fitted.vocabulary.pieces(told[0, 0, :2].tolist()) == ["john", "went"]


def test_models_of_one_stream_read_all_words_in_a_row(tmp_path):
    task = built(tmp_path, noise=0.0)
    task.pose(task.problems()[1])
    batch = task.collate(task.examples("test")[2:], seeded())
    assert task.fitted.vocabulary.pieces(batch.inputs[0].tolist()) == [
        "sandra",
        "went",
        "to",
        "the",
        "garden",
        "where",
        "is",
        "sandra",
    ]
    assert task.length(task.examples("test")[2]) == 8


def test_training_batches_have_one_width_and_always_a_mask(tmp_path):
    """A GPU repeats a recorded step for batches of equal tensors: names, shapes and masks."""
    task = built(tmp_path, noise=0)
    told = [one for one in task.examples("train") if len(one.story) == 3]
    batches = [task.collate([one], seeded()) for one in (told[0], told[0]._replace(question=("where",)))]
    shapes = [{name: tensor.shape for name, tensor in batch.tensors().items()} for batch in batches]
    assert shapes[0] == shapes[1]
    for batch, words in zip(batches, (told[0].question, ("where",)), strict=True):
        assert batch.streams["question"].keep.tolist() == [[n < len(words) for n in range(task.fitted.width)]]
        assert batch.streams["story"].keep.sum() == 3
    plain = task.collate([told[0]._replace(training=False)], seeded())
    assert plain.streams["story"].keep is None and plain.streams["question"].keep is None


def test_noise_puts_empty_sentences_between_those_of_training_stories_alone(tmp_path):
    long = "".join(f"{n} Mary saw thing{n}.\n" for n in range(1, 21)) + "21 What?\tnothing\t1\n"
    task = built(tmp_path, ONE + long, noise=0.25)
    example = task.examples("train")[-1]
    counts = []
    for seed in range(80):
        told = task.collate([example], seeded(seed)).streams["story"]
        assert told.data.shape[1] % 8 == 0, "few different lengths"
        real = (told.data != 0).any(-1)[0][told.keep[0]] if told.keep is not None else (told.data != 0).any(-1)[0]
        assert int(real.sum()) == 20 and bool(real[-1])
        counts.append(int((~real).sum()))
    assert sum(counts) / 80 == pytest.approx(20 * 0.25, abs=1.0)
    short = built(tmp_path, noise=0).examples("train")[1]
    assert len(short.story) == 3 and task.collate([short], seeded()).streams["story"].data.shape[1] in (4, 6)
    plain = task.collate([task.examples("test")[-1]], seeded()).streams["story"].data
    assert plain.shape[1] == 20


def test_the_error_is_the_mean_over_tasks_and_a_task_fails_above_five_per_cent(tmp_path):
    """qa1: 1 of 20 wrong (5 %: passes); qa2: 2 of 4 wrong (fails). Mean of 5 % and 50 %."""
    fact = "1 Mary moved to the hall.\n"
    files = {
        f"qa1_x_{split}": fact + "".join(f"{n} Where is Mary?\thall\t1\n" for n in range(2, 22))
        for split in ("train", "valid", "test")
    }
    files |= {
        name.replace("qa1", "qa2"): fact + "".join(f"{n} Is Mary in?\tno\t1\n" for n in range(2, 6)) for name in files
    }
    task = tasks.build("answer", data=written(tmp_path, **files))
    examples = task.examples("test")
    assert [one.kind for one in examples] == ["qa1"] * 20 + ["qa2"] * 4
    batch = task.collate(examples, seeded())
    guesses = batch.targets.clone()
    hall, no = (task.fitted.labels.index(answer) for answer in ("hall", "no"))
    guesses[[3, 21, 22]] = hall + no - guesses[[3, 21, 22]]
    found = judged(task, Fixed(lambda _: certain(guesses, len(task.fitted.labels))), batch)
    assert found["error"] == pytest.approx((0.05 + 0.5) / 2) and found["failed_tasks"] == 1
    state = {"asked qa1": 20, "wrong qa1": 1, "asked qa2": 4, "wrong qa2": 2}
    assert error_of_kind("qa2").value(state) == 0.5 and error_of_kind("qa2").count(state) == 4
    assert FAILED.value({**state, "wrong qa1": 2}) == 2 and not ERROR.higher_is_better


def test_the_errors_of_all_tasks_are_examined(tmp_path):
    task = built(tmp_path)

    class Model(Fixed):
        head = None

    right = {("where", "is", "mary"): "bathroom"}
    model = Model(
        lambda batch: certain(
            torch.tensor(
                [
                    task.fitted.labels.index(
                        right.get(tuple(task.fitted.vocabulary.pieces(row[row > 0].tolist())), "garden")
                    )
                    for row in batch.streams["question"].data
                ]
            ),
            len(task.fitted.labels),
        )
    )
    ((metric, state),) = task.examine(model, "test", batch_size=2, device="cpu")
    assert metric.name == "error_qa3" and metric.value(state) == pytest.approx(1 / 3)


def test_any_word_may_be_the_answer_and_an_answer_of_several_words_has_an_id_of_its_own(tmp_path):
    story = "1 Mary took the milk.\n2 Mary took the apple.\n3 What has Mary?\t{}\t1 2\n4 Who is here?\tmary\t1\n"
    files = {
        f"qa8_x_{split}": story.format(answer)
        for split, answer in (("train", "milk"), ("valid", "apple"), ("test", "milk,apple"))
    }
    task = tasks.build("answer", data=written(tmp_path, **files))
    assert task.fitted.labels == task.fitted.vocabulary.pieces(range(len(task.fitted.vocabulary)))
    assert task.fitted.labels[-1] == "milk,apple" and len(set(task.fitted.labels)) == len(task.fitted.labels)
    (told, asked), answer = task.streams().values(), task.answers()[0]
    assert told.count == asked.count == answer.outputs == len(task.fitted.labels)
    batch = task.collate(task.examples("train"), seeded())
    assert task.fitted.vocabulary.pieces(batch.targets.tolist()) == ["milk", "mary"]
    again = tasks.build("answer", data=str(tmp_path))
    again.restore({**task.state(), "labels": ["milk", "mary", "apple", "milk,apple"]})
    assert again.answers()[0].outputs == 4, "an earlier run has a list of its answers alone"


def test_a_typed_story_ends_with_its_question(tmp_path):
    task = built(tmp_path, sentences=2)
    text = {"text": "John left. Mary went to the kitchen. Sandra took the milk. Where is Mary?"}
    example = task.parse(text)
    assert example.story == (("mary", "went", "to", "the", "kitchen"), ("sandra", "took", "the", "milk"))
    assert example.question == ("where", "is", "mary")
    read = task.understood(text, example)
    assert read.known == [False, True] and read.pieces[1] == "sandra took the milk"
    assert read.notes == ["1 words are unknown to this run: kitchen", "only the last 2 of 3 sentences were read"]
    shown = task.show(example, task.collate([example], seeded()))
    assert shown.called == "sentences" and shown.streams == {"question": ["where", "is", "mary"]}
    with pytest.raises(BadValue, match="--text: expected a story and a question"):
        task.parse({"text": "Where is Mary?"})


def test_an_answer_that_the_run_never_learned_is_named_with_its_line(tmp_path):
    task = built(tmp_path)
    (tmp_path / "other").mkdir()
    data = written(tmp_path / "other", qa3_x_test=ONE.replace("garden\t1", "attic\t1"))
    other = tasks.TASKS["answer"](data=data)
    other.restore(task.state())
    with pytest.raises(BadValue, match=r"qa3_x_test.txt:7: the answer 'attic' is unknown"):
        other.examples("test")


def test_state_restores_a_task_whose_files_are_gone(tmp_path):
    task = built(tmp_path, sentences=7)
    state = json.loads(json.dumps(task.state()))
    gone = tasks.TASKS["answer"](data="/nowhere")
    gone.restore(state)
    assert gone.problems() == task.problems() and gone.state() == state
    gone.pose(gone.problems()[0])
    text = {"text": "Mary went to the hallway. Where is Mary?"}
    one, two = (made.collate([made.parse(text)], seeded()) for made in (task, gone))
    assert all(torch.equal(a, b) for a, b in zip(one.tensors().values(), two.tensors().values(), strict=True))


def answer_by_hand(sentences, question):
    """Follow a generated story sentence by sentence."""
    at, owner, lies, took = {}, {}, {}, {}
    for sentence in sentences:
        words = sentence.split()
        who, what = words[0], words[-1]
        if words[-3] == "to":
            at[who] = what
        elif words[1] in ("took", "picked"):
            owner[what] = took[what] = who
        else:
            del owner[what]
            lies[what] = at[who]
    asked = question.split()
    if asked[0] == "Who":
        return took[asked[-1]].lower()
    if asked[0] == "How":
        return NUMBERS[sum(one == asked[4] for one in owner.values())]
    return at[asked[2]] if len(asked) == 3 else at[owner[asked[3]]] if asked[3] in owner else lies[asked[3]]


def test_answers_of_generated_stories_follow_from_their_sentences():
    for index in range(200):
        sentences, question, answer, supports, kind = story(0, "test", index)
        assert answer == answer_by_hand(sentences, question), (sentences, question)
        assert kind == KINDS[index % 4] and all(0 <= number < len(sentences) for number in supports)
        if kind == "person":
            (number,) = supports
            assert question.split()[2] in sentences[number] and answer in sentences[number]
