"""Dialogue state tracking: goals that accumulate over turns, values that an ontology lacks, a tracker's attention."""

import json
import pickle

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.models.parts.embedding import stream_mask
from regard_workbench.tasks.answers.slots import OUTSIDE
from regard_workbench.tasks.formats.goals import Goals
from regard_workbench.tasks.formats.woz import Turn
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.tasks.text.spelling import MOST, hide, trigrams
from regard_workbench.training import train
from tests.tasks.test_woz import turn, written

ONTOLOGY = {"food": ["thai", "north indian", "greek"], "area": ["north", "south"], "request": ["phone", "address"]}


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def folder(tmp_path):
    """Two dialogues of three and two turns in the test file."""
    food, south = ("food", "thai"), ("area", "south")
    first = [
        turn("thai food", label=[food], state=[food]),
        turn("the north", "which area", [("area", "north")], [food, ("area", "north")], ["area"]),
        turn("no south", "the north ?", [south, ("request", "phone")], [food, south], [["area", "north"]]),
    ]
    second = [
        turn("any food", label=[("food", "dontcare")], state=[("food", "dontcare")]),
        turn("bye", "here it is", [], [("food", "dontcare")]),
    ]
    written(tmp_path / "train.json", first, second)
    written(tmp_path / "val.json", second)
    written(tmp_path / "test.json", first, second)
    (tmp_path / "ontology.json").write_text(json.dumps({"informable": ONTOLOGY}))
    return tmp_path


def scores(task, rows):
    """Outputs that choose these columns of a target in each row."""
    made = []
    for row in rows:
        columns, line = list(row), []
        for slot in task.problem.answer.slots:
            if slot.several:
                line += [1.0 if columns.pop(0) else -1.0 for _ in slot.values]
            else:
                line += [float(number == columns[0]) for number in range(len(slot.values) + 1)]
                columns.pop(0)
        made.append(line)
    return torch.tensor(made)


def judged(task, batch, rows):
    outputs = scores(task, rows)
    answered = Answered(lambda _: outputs, batch)
    return {metric.name: metric.of(answered) for metric in task.metrics() if metric.name != "loss"}


def test_goals_accumulate_over_turns_and_are_judged_as_by_hand(folder):
    task = tasks.build("dialogue", data=folder)
    batch = task.collate(task.examples("test"), seeded())
    assert batch.notes["turns"] == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    # columns: food (0 none, 1 thai, 2 north indian, 3 greek, 4 dontcare), area (1 north, 2 south, 3 dontcare),
    # phone, address
    right = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 2, 1, 0], [4, 0, 0, 0], [0, 0, 0, 0]]
    assert batch.targets.tolist() == right
    assert judged(task, batch, right) == {"joint_goal": [5, 5], "turn_goal": [5, 5], "request": [5, 5]}
    # A wrong food in the first turn spoils all three turns of that dialogue, though only one turn is wrong.
    wrong_food = [[3, 0, 0, 0], *right[1:]]
    assert judged(task, batch, wrong_food) == {"joint_goal": [2, 5], "turn_goal": [4, 5], "request": [5, 5]}
    # An area that is missed in the second turn is repaired by the third, which names another.
    missed = [right[0], [0, 0, 0, 1], *right[2:]]
    assert judged(task, batch, missed) == {"joint_goal": [4, 5], "turn_goal": [4, 5], "request": [4, 5]}
    # What one dialogue found is not carried into the next.
    lost = [*right[:3], [0, 0, 0, 0], right[4]]
    assert judged(task, batch, lost) == {"joint_goal": [3, 5], "turn_goal": [4, 5], "request": [5, 5]}


def test_the_order_of_rows_in_a_batch_does_not_matter_to_the_goals(folder):
    task = tasks.build("dialogue", data=folder)
    examples = [example._replace(first=1) for example in task.examples("test")]
    batch = task.collate(examples, seeded())
    assert batch.notes["turns"] == ((0, 1), (0, 2), (0, 0), (1, 1), (1, 0))
    rows = batch.targets.tolist()
    assert judged(task, batch, rows)["joint_goal"] == [5, 5]
    rows[2] = [0, 0, 0, 0]  # the first turn of the first dialogue
    assert judged(task, batch, rows)["joint_goal"] == [2, 5]
    predicted = task.problem.answer.head().predict(scores(task, batch.targets.tolist()), batch)
    assert task.decode(predicted[0]) == "food = thai, area = south, asks for phone"
    assert task.decode(predicted[1]) == "food = dontcare"


def test_values_outside_the_ontology_teach_nothing_and_count_as_errors(folder):
    odd = turn("the riverside", label=[("area", "riverside")], state=[("area", "riverside")])
    written(folder / "test.json", [odd])
    task = tasks.build("dialogue", data=folder)
    batch = task.collate(task.examples("test"), seeded())
    assert batch.targets.tolist() == [[0, OUTSIDE, 0, 0]]
    for area in range(4):
        assert judged(task, batch, [[0, area, 0, 0]])["joint_goal"] == [0, 1]
    assert task.protocol()["not in the ontology"] == "area = riverside: these count as errors"
    outputs = scores(task, [[0, 0, 0, 0]]).requires_grad_()
    loss, count = task.problem.answer.head().loss(outputs, batch)
    loss.backward()
    begin = task.problem.answer.slots[0].scores
    assert count == 1 and (outputs.grad[0, begin : begin + 4] == 0).all() and outputs.grad.any()


def test_slots_that_nobody_knows_are_refused_with_their_line(folder):
    path = written(folder / "test.json", [turn(), turn(label=[("colour", "red")])])
    task = tasks.build("dialogue", data=folder)
    with pytest.raises(BadValue, match=r"turn 2: there is no slot 'colour'. Known: food, area, request") as refused:
        task.examples("test")
    line = int(str(refused.value).removeprefix(f"{path}:").partition(":")[0])
    assert path.read_text().splitlines()[line - 1].strip() == "{"
    (folder / "ontology.json").unlink()
    written(folder / "train.json", [turn()])
    with pytest.raises(BadValue, match="no turn has a turn_label, and there is no ontology"):
        tasks.build("dialogue", data=folder)


def test_without_an_ontology_the_training_labels_are_the_values(folder):
    (folder / "ontology.json").unlink()
    task = tasks.build("dialogue", data=folder)
    areas = ("north", "south", "dontcare")
    assert task.fitted.slots.values == {"area": areas, "food": ("dontcare", "thai"), "request": ("phone",)}


def test_the_loss_is_that_of_its_slots_one_by_one(folder):
    task = tasks.build("dialogue", data=folder)
    batch = task.collate(task.examples("test"), seeded())
    head = task.problem.answer.head()
    outputs = torch.randn(5, task.problem.answer.outputs, generator=seeded(), dtype=torch.float64)
    expected = 0.0
    for row, target in zip(outputs, batch.targets.tolist(), strict=True):
        food, area, flags = row[:5], row[5:9], row[9:]
        expected += float(food.logsumexp(0) - food[target[0]] + area.logsumexp(0) - area[target[1]])
        for score, flag in zip(flags, target[2:], strict=True):
            expected += float(torch.nn.functional.softplus(-score if flag else score))
    total, count = head.loss(outputs, batch)
    assert float(total) == pytest.approx(expected, rel=1e-5) and count == 5


def test_a_swapped_value_changes_words_acts_and_label_together():
    goals = Goals(ONTOLOGY)
    one = Turn("thai ?", "yes thai not greek", (("food", "thai"),), (("food", "thai"), ("request", "phone")))
    seen = set()
    for number in range(60):
        other = goals.swapped(one, 1.0, seeded(number))
        value = other.label[0][1]
        seen.add(value)
        assert other.user == f"yes {value} not greek" and other.system == f"{value} ?"
        assert other.acts == (("food", value),) and other.label[1] == ("request", "phone")
    assert seen == {"north indian", "greek"}
    assert goals.swapped(one, 0.0, seeded()) == one
    unsaid = one._replace(user="yes", system="")
    assert goals.swapped(unsaid, 1.0, seeded()) == unsaid


def test_training_swaps_and_hides_but_tests_do_not(folder):
    task = tasks.build("dialogue", data=folder, swap=0.9, hide=0.5)
    rest = [task.collate(task.examples("test"), seeded(n)).inputs for n in range(2)]
    assert torch.equal(*rest)
    learned = [task.collate(task.examples("train"), seeded(n)) for n in range(2)]
    assert learned[0].inputs.tolist() != learned[1].inputs.tolist()
    assert (learned[0].inputs[..., 0] == 1).any(), "hidden words are unknown"
    assert learned[0].notes["gold"] == learned[1].notes["gold"]


def test_misspelt_words_share_trigrams_and_long_ones_are_cut():
    right, misspelt, other = (set(trigrams(word)) for word in ("portuguese", "portugese", "turkish"))
    assert len(right & misspelt) >= 6 and len(right & other) <= 1
    assert len(trigrams("a" * 50)) == MOST and len(trigrams("a")) == 1


def test_hidden_words_have_no_spelling_and_marks_stay():
    data = torch.randint(5, 99, (7, 23, 2 + MOST), generator=seeded())
    data[:, 0, 0], data[:, 20:, 0] = 2, 0
    shown, asked = hide(data, seeded())
    assert not asked[:, 0].any() and not asked[:, 20:].any() and (asked.sum(1) == round(0.15 * 19)).all()
    blank = shown[..., 0] == 4
    assert blank.any() and not (blank & ~asked).any() and (shown[blank][:, 2:] == 0).all()
    assert torch.equal(shown[~blank], data[~blank])


@pytest.fixture
def tracked(folder):
    task = tasks.build("dialogue", data=folder)
    torch.manual_seed(1)
    model = models.build("tracker(dim=12, layers=1, num_heads=3)", task.problem).double().eval()
    return task, model


def test_a_turn_is_read_alone_whatever_is_padded_beside_it(tracked):
    task, model = tracked
    example = task.examples("test")[0]
    together = model(task.collate([example], seeded()))
    for number, one in enumerate(example.turns):
        alone = model(task.collate([example._replace(turns=(one,))], seeded()))
        assert torch.allclose(alone[0], together[number], atol=1e-12)
    later = example.turns[2]._replace(user="greek in the north for ever and ever and ever", acts=())
    changed = model(task.collate([example._replace(turns=(*example.turns[:2], later))], seeded()))
    assert torch.allclose(changed[:2], together[:2], atol=1e-12), "a later turn tells nothing to earlier ones"
    assert not torch.allclose(changed[2], together[2], atol=1e-3)


@torch.no_grad()
def test_scores_are_the_formula_written_out_value_by_value(tracked):
    task, model = tracked
    batch = task.collate(task.examples("test")[:1], seeded())
    found = model(batch)
    spelled, rows = model.embedding.rows, model.rows(batch)
    mask = stream_mask(batch.streams.values())
    keep = mask.keep(batch.inputs.shape[1], batch.size)

    def lexical(word):
        grams = [gram for gram in word[2:] if gram]
        vector = sum((spelled.gram.weight[gram] for gram in grams), torch.zeros(12).double())
        return (spelled.word.weight[word[0]] + vector / max(1, len(grams)) ** 0.5) / 2**0.5

    def attended(layer, query, source):
        """Multi-head attention of one query, head by head, without batches."""
        q, k, v = layer.query_map(query), layer.key_map(source), layer.value_map(source)
        heads = []
        for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
            weights = (k[:, part] @ q[part] / 4**0.5).softmax(0)
            heads.append(weights @ v[:, part])
        return layer.output_map(torch.cat(heads))

    for turn_number in range(batch.size):
        real = keep[turn_number]
        context = rows[turn_number][real]
        words = torch.stack([lexical(word) for word in batch.inputs[turn_number][real].tolist()])
        column = 0
        for number, slot in enumerate(task.problem.answer.slots):
            own = model.slot_rows[number] + sum(lexical(word) for word in slot.name) / len(slot.name)
            about = model.norm(attended(model.about, own, context))
            if not slot.several:
                assert found[turn_number, column] == pytest.approx(float(model.none(about)), abs=1e-9)
                column += 1
            for value in slot.values:
                vectors = [lexical(word) for word in value]
                mentions = [attended(model.mention, vector + own, torch.cat([words, context], 1)) for vector in vectors]
                mean, mention = sum(vectors) / len(vectors), sum(mentions) / len(mentions)
                hidden = torch.nn.functional.gelu(model.from_about(about) + mention + model.from_value(mean))
                score = model.score(hidden)[0] + about @ model.meaning(mean) / 12**0.5
                assert found[turn_number, column] == pytest.approx(float(score), abs=1e-9)
                column += 1


def test_state_is_json_and_a_restored_task_needs_no_files(folder, tracked):
    task, _ = tracked
    state = json.loads(json.dumps(task.state()))
    gone = tasks.build("dialogue", state, data="/nowhere/at/all")
    assert gone.problems() == task.problems()
    example = gone.parse({"text": "thai food | which area ? | the north"})
    batch = gone.collate([example], seeded())
    assert batch.notes["turns"] == ((0, 1), (0, 0)), "the turn that was said last comes first"
    shown = gone.show(example, batch)
    assert shown.pieces == ["[user]", "the", "north", "[system]", "which", "area", "?"]
    assert shown.streams["goals"] == ["food", "area", "request"] and len(shown.streams["values"]) == 10
    assert pickle.loads(pickle.dumps(task)).problems() == task.problems()
    with pytest.raises(BadValue, match="slots: expected an object of lists"):
        Goals.restored({"food": "thai"})


def test_words_that_a_typed_dialogue_holds_and_the_run_does_not_are_counted(tracked):
    task, _ = tracked
    text = {"text": "thai quuxing food | which zorp ? | the north"}
    read = task.understood(text, task.parse(text))
    assert read.pieces == ["thai", "quuxing", "food", "which", "zorp", "?", "the", "north"]
    assert [piece for piece, known in zip(read.pieces, read.known, strict=True) if not known] == ["quuxing", "zorp"]
    assert read.notes == ["2 of 8 words are unknown to this run"]
    known = {"text": "thai food | which area ? | the north"}
    assert task.understood(known, task.parse(known)).notes == []


@pytest.mark.parametrize("text", ["a | b", "a | | b", ""])
def test_typed_dialogues_begin_and_end_with_the_user(tracked, text):
    with pytest.raises(BadValue, match=r"expected an odd number of turns|none of them empty"):
        tracked[0].parse({"text": text})


def test_hidden_words_are_guessed_first_and_their_weights_carried_over(folder, tmp_path):
    before = train(
        {
            "task": "dialogue",
            "model": "encoder(dim=12, layers=1, num_heads=3)",
            "data": [str(folder)],
            "steps": 3,
            "batch_size": 2,
            "out": str(tmp_path / "hidden"),
            "device": "cpu",
        },
        quiet=True,
    )
    assert before.metrics.keys() >= {"accuracy"}
    after = train(
        {
            "task": "dialogue",
            "model": "tracker(dim=12, layers=1, num_heads=3)",
            "data": [str(folder)],
            "steps": 3,
            "batch_size": 2,
            "out": str(tmp_path / "run"),
            "device": "cpu",
            "init_from": str(tmp_path / "hidden"),
        },
        quiet=True,
    )
    assert after.metrics.keys() >= {"joint_goal", "turn_goal", "request"}
