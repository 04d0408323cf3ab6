"""Recommendation: splits, negatives and ranking metrics against plain loops; damaged files; titles."""

import json
import math
import pickle
import random

import pytest
import torch

from regard import observe
from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks import Batch, Problem, Tokens
from regard_workbench.tasks.answers import NextItem
from regard_workbench.tasks.answers.items import drawn_others
from regard_workbench.tasks.measures.metrics import Answered, values
from regard_workbench.tasks.measures.metrics import observe as states_of
from regard_workbench.tasks.measures.ranking import full_places, gains, hits, sampled_places
from regard_workbench.training.evaluation import evaluate

ITEMS, USERS, NEGATIVES = 37, 29, 11


def actions(seed=3):
    """Histories of 1 to 17 actions; the lines of different users are mixed, those of one are in time order."""
    draw = random.Random(seed)
    histories = {str(user): draw.sample(range(1, ITEMS + 1), draw.randrange(1, 18)) for user in range(USERS)}
    histories["0"] = list(range(1, 18))
    waiting = {user: list(items) for user, items in histories.items()}
    lines = []
    while any(waiting.values()):
        user = draw.choice([user for user, items in waiting.items() if items])
        lines.append(f"{user} {waiting[user].pop(0)}")
    return histories, "\n".join(lines) + "\n"


def built(folder, text=None, **options):
    path = folder / "shop.txt"
    path.write_text(actions()[1] if text is None else text)
    return tasks.build("recommend", data=str(path), **{"negatives": NEGATIVES, "max_length": 7, **options})


def number(task, item):
    return task.fitted.items.index(str(item)) + 1


def seeded():
    return torch.Generator().manual_seed(5)


def test_the_last_item_is_the_test_and_the_one_before_it_validation(tmp_path):
    histories, _ = actions()
    task = built(tmp_path)
    asked = {user: items for user, items in histories.items() if len(items) >= 3}
    for split, back in (("validation", 2), ("test", 1)):
        found = {one.user: one for one in task.examples(split)}
        assert set(found) == set(asked)
        for user, items in asked.items():
            before = [number(task, item) for item in items[: len(items) - back]]
            assert found[user].items == tuple(before[-7:])
            assert found[user].following == (number(task, items[-back]),)
            assert found[user].seen == tuple(sorted(before))
    for one in task.examples("train"):
        items = [number(task, item) for item in histories[one.user]]
        kept = items[:-2] if len(items) >= 3 else items
        assert one.items == tuple(kept[:-1][-7:]) and one.following == tuple(kept[1:][-7:])
        assert not one.negatives


def test_no_training_target_is_a_held_out_item(tmp_path):
    """A model that is trained never sees what it will be asked for."""
    task = built(tmp_path)
    held = {one.user: one.following[0] for split in ("validation", "test") for one in task.examples(split)}
    for one in task.examples("train"):
        assert held.get(one.user) not in (*one.items, *one.following)


def test_negatives_are_distinct_items_that_the_user_never_took(tmp_path):
    histories, _ = actions()
    task, again = built(tmp_path), built(tmp_path)
    for split in ("validation", "test"):
        for one, same in zip(task.examples(split), again.examples(split), strict=True):
            taken = {number(task, item) for item in histories[one.user]}
            assert len(set(one.negatives)) == len(one.negatives) == NEGATIVES
            assert taken.isdisjoint(one.negatives) and set(one.negatives) <= set(range(1, len(task.fitted.items) + 1))
            assert one == same
    assert task.examples("test")[0].negatives != task.examples("validation")[0].negatives
    other = built(tmp_path, seed=1)
    assert task.examples("test")[0].negatives != other.examples("test")[0].negatives
    few = built(tmp_path, negatives=1000)
    one = few.examples("test")[0]
    assert len(one.negatives) == ITEMS - len(histories[one.user]), "where there are fewer, all are taken"


def by_loops(scores, true, others):
    """The place of an item among others, one by one; ties and NaN count against it."""
    place = 1
    for other in others:
        if other != true and not scores[other] < scores[true]:
            place += 1
    return place


def test_metrics_are_those_of_plain_loops(tmp_path):
    """Scores are rounded, so that there are ties in every ranking."""
    histories, _ = actions()
    task = built(tmp_path)
    torch.manual_seed(4)
    model = models.build("recommender", task.problems()[0], dim=6, layers=1, tied=False).eval()

    class Rounded(type(model)):
        def forward(self, batch):
            return super().forward(batch).mul(2).round()

    model.__class__ = Rounded
    for split, back in (("validation", 2), ("test", 1)):
        found = evaluate(task, model, split, batch_size=5)
        sums = dict.fromkeys(("hit_at_10", "ndcg_at_10", "full_hit_at_10", "full_ndcg_at_10"), 0.0)
        count, ties = 0, 0
        for one in task.examples(split):
            items = [number(task, item) for item in histories[one.user]]
            history, true = items[: len(items) - back], items[-back]
            with torch.no_grad():
                scores = model(Batch.of(torch.tensor([history[-7:]])))[0, -1].tolist()
            everything = [n for n in range(1, len(task.fitted.items) + 1) if n not in history]
            for name, others in (("", one.negatives), ("full_", everything)):
                ties += sum(scores[n] == scores[true] for n in others if n != true)
                place = by_loops(scores, true, others)
                sums[f"{name}hit_at_10"] += place <= 10
                sums[f"{name}ndcg_at_10"] += 1 / math.log2(place + 1) if place <= 10 else 0
            count += 1
        assert ties > 50
        for name, total in sums.items():
            assert found[name] == pytest.approx(total / count), name


def test_places_of_ties_and_of_scores_that_are_not_numbers():
    scores = torch.tensor([[9.0, 1, 1, 1, 1], [9, 5, 4, 3, 2], [9, math.nan, 4, 3, 2], [9, 5, math.nan, 3, 2]])
    true, others = torch.ones(4, dtype=torch.long), torch.tensor([[2, 3, 4]] * 4)
    assert sampled_places(scores, true, others).tolist() == [4, 1, 4, 2]
    nothing = torch.zeros(4, 1, dtype=torch.long)
    assert full_places(scores, true, nothing).tolist() == [4, 1, 4, 2], "id 0 is no item"
    assert full_places(scores, true, torch.tensor([[2, 0]] * 4)).tolist() == [3, 1, 3, 1]
    keep = torch.tensor([[True, False, True]] * 4)
    assert sampled_places(scores, true, others, keep).tolist() == [3, 1, 3, 2]


def test_hit_rate_and_gain_by_hand():
    places = torch.tensor([1, 2, 3, 10, 11])
    assert hits(places).tolist() == [1, 1, 1, 1, 0]
    assert gains(places).tolist() == pytest.approx([1, 1 / math.log2(3), 0.5, 1 / math.log2(11), 0])


def test_popularity_is_counted_in_the_training_part(tmp_path):
    """Three users took items 1 and 2 for training; 4 is popular only among held-out items."""
    lines = "".join(f"{user} {item}\n" for user in "abc" for item in (1, 2, 3 if user == "a" else 5, 4))
    task = built(tmp_path, lines + "d 2\nd 6\nd 7\nd 8\n", negatives=2)
    states = {metric.name: metric.value(state) for metric, state in task.examine(None, "test", batch_size=3, device="")}
    # Nobody took item 4 or 8 for training: other items that are not taken before tie with it or go before it.
    places = [1 + 4, 1 + 4, 1 + 4, 1 + 4]  # a: {5,6,7,8}; b, c: {3,6,7,8}; d: {1,3,4,5}
    assert states["popular_full_ndcg_at_10"] == pytest.approx(sum(1 / math.log2(p + 1) for p in places) / 4)
    assert states["popular_hit_at_10"] == 1.0


def test_users_with_fewer_than_three_actions_are_only_trained_on_and_counted(tmp_path):
    task = built(tmp_path, "a 1\na 2\na 3\nb 4\nb 5\nc 6\n", negatives=1)
    assert [one.user for one in task.examples("test")] == ["a"]
    assert [one.user for one in task.examples("train")] == ["b"]
    assert task.protocol()["left out"] == "2 users with fewer than 3 actions: only trained on"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2\n1\n", r"shop\.txt:2: expected a user and an item, got '1'\. Complete the line or delete it"),
        (
            "1 2\n\n1 3 5 978300760\n",
            r"shop\.txt:3: expected lines `user item`, .* line 3 has more than an item.*Leave out what follows",
        ),
        ("", r"shop\.txt: is empty"),
        ("1 2\n1 3\n2 4\n", r"expected users with at least 3 actions, and .*shop\.txt has none"),
    ],
)
def test_damaged_files_are_named_with_their_line(text, words, tmp_path):
    with pytest.raises(BadValue, match=words):
        built(tmp_path, text).streams()


@pytest.mark.parametrize("same_length", [True, False])
def test_a_line_for_each_user_is_a_whole_history(tmp_path, same_length):
    """As ICLRec and S3Rec write Beauty; the same histories in lines `user item` are the oracle."""
    longest = {user: 7 if same_length else 1 + user % 7 for user in range(1, 30)}
    histories = {user: [3 * user + place for place in range(count)] for user, count in longest.items()}
    lines = "".join(f"{user} {' '.join(map(str, items))}\n" for user, items in histories.items())
    pairs = "".join(f"{user} {item}\n" for user, items in histories.items() for item in items)
    one, other = built(tmp_path, lines), built(tmp_path, pairs)
    for split in ("train", "validation", "test"):
        assert one.examples(split) == other.examples(split) != []
    assert one.state() == other.state()


def test_items_that_the_run_does_not_know_are_named(tmp_path):
    task = built(tmp_path)
    state = json.loads(json.dumps(task.state()))
    (tmp_path / "new.txt").write_text("9 1\n9 2\n9 99\n9 3\n")
    other = tasks.build("recommend", state=state, data=str(tmp_path / "new.txt"))
    with pytest.raises(BadValue, match=r"new\.txt:3: the item '99' is unknown to this run, which learned 37 others"):
        other.examples("test")
    with pytest.raises(BadValue, match=r"--text: .*'99' is none of its 37 items"):
        task.parse({"text": "1 99"})
    with pytest.raises(BadValue, match=r"there is no user 'x'"):
        task.parse({"text": "user x"})
    with pytest.raises(BadValue, match="expected one file of lines `user item`, got the folder"):
        tasks.build("recommend", data=str(tmp_path)).streams()


def test_a_restored_task_needs_no_data_and_tasks_pickle(tmp_path):
    task = built(tmp_path)
    gone = tasks.build("recommend", state=json.loads(json.dumps(task.state())), data=str(tmp_path / "gone.txt"))
    assert gone.problems() == task.problems()
    assert gone.parse({"text": "3, 1 2"}).items == tuple(number(task, n) for n in (3, 1, 2))
    assert pickle.loads(pickle.dumps(task)).examples("test") == task.examples("test")


def test_histories_are_shown_with_the_titles_beside_them(tmp_path):
    (tmp_path / "shop.titles.tsv").write_text("1\tOne, two\n2\tBuckle my shoe\n")
    task = built(tmp_path)
    example = task.parse({"text": "1 2 3"})
    shown = task.show(example, task.collate([example], seeded()))
    assert shown.pieces == ["One, two", "Buckle my shoe", "3"]
    assert task.answer_text([number(task, 2), number(task, 5)], example) == " 1. 2  Buckle my shoe\n 2. 5"
    user = task.parse({"text": "user 0"})
    assert user.items == tuple(number(task, n) for n in range(11, 18)), "the newest"
    assert "user 0" in task.show(user, task.collate([user], seeded())).words


def test_titles_of_movielens_are_found_through_its_mapping(tmp_path):
    (tmp_path / "shop.movies.dat").write_bytes(
        "71::Caf\xe9 (1990)::Drama\n72::Other (1991)::Comedy\n".encode("latin-1")
    )
    (tmp_path / "shop.sas_to_original_items.txt").write_text("1 71\n2 72\n3 73\n")
    task = built(tmp_path)
    task.streams()
    assert [task.called(number(task, n)) for n in (1, 2, 3)] == ["Café (1990)", "Other (1991)", "3"]
    (tmp_path / "shop.sas_to_original_items.txt").write_text("1 71\n2\n")
    with pytest.raises(BadValue, match=r"shop\.sas_to_original_items\.txt:2: expected an item and its id"):
        built(tmp_path).known_titles  # noqa: B018
    with pytest.raises(BadValue, match=r"t\.tsv:1: expected an item, a tab and its title"):
        (tmp_path / "t.tsv").write_text("1 no tab\n")
        built(tmp_path, titles=str(tmp_path / "t.tsv")).known_titles  # noqa: B018


PROBLEM = Problem.of(Tokens(19, length=11), NextItem(19))


def recommender(**options):
    torch.manual_seed(2)
    return models.build("recommender", PROBLEM, **{"dim": 8, "layers": 2, **options}).double().eval()


def test_later_items_do_not_change_earlier_scores():
    model, items = recommender(), torch.randint(1, 19, (2, 11), generator=seeded())
    changed = items.clone()
    changed[:, 6:] = torch.randint(1, 19, (2, 5), generator=seeded())
    first, second = (model(Batch.of(given, None, torch.ones_like(given))) for given in (items, changed))
    assert torch.equal(first[:, :6], second[:, :6]) and not torch.equal(first[:, 6:], second[:, 6:])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_padding_a_history_changes_nothing_and_positions_count_from_the_newest(positions):
    model = recommender(positions=positions)
    items = torch.randint(1, 19, (3, 11), generator=seeded())
    keep = torch.arange(11) < torch.tensor([11, 4, 1])[:, None]
    together = model(Batch.of(items.masked_fill(~keep, 0), keep, torch.ones(3, 1).long()))
    for row, length in enumerate((11, 4, 1)):
        alone = model(Batch.of(items[row : row + 1, :length], None, torch.ones(1, 1).long()))
        assert torch.allclose(together[row], alone[0], atol=1e-12)


def test_predictions_are_the_best_items_outside_the_history():
    model = recommender()
    history = torch.tensor([[3, 7, 18], [5, 5, 1]])
    batch = Batch.of(history)
    scores, found = model(batch)[:, -1], model.predict(model(batch), batch)
    for row, taken in enumerate(history.tolist()):
        order = sorted((n for n in range(1, 19) if n not in taken), key=lambda n: -scores[row, n].item())
        assert found[row] == order[:10]
    few = Problem.of(Tokens(4, length=5), NextItem(4))
    small = models.build("recommender", few, dim=8).eval()
    batch = Batch.of(torch.tensor([[1, 3]]))
    assert small.predict(small(batch), batch) == [[2]], "where there are fewer than ten, all of them"


@pytest.mark.parametrize(("negatives", "calibration"), [(1, 0.0), (5, 0.75)])
def test_with_drawn_negatives_the_loss_is_the_binary_cross_entropy_on_average(negatives, calibration):
    problem = Problem.of(Tokens(8, length=5), NextItem(8, negatives, calibration))
    torch.manual_seed(3)
    model = models.build("recommender", problem, dim=6, layers=1, dropout=0.0).double().train()
    batch = Batch.of(torch.tensor([[1, 4, 7]]), None, torch.tensor([[4, 7, 1]]))
    with torch.no_grad():
        outputs = model(batch)
        found = sum(float(model.loss(outputs, batch)[0]) for _ in range(3000)) / 3000
    expected, share = (0.0, negatives / 6)  # of the seven items six are others; those of the history are not drawn
    for place, right in enumerate((4, 7, 1)):
        scores = outputs[0, place].tolist()
        weight = share * (calibration * (1 - 1 / share) + 1 / share)
        others = [math.log1p(math.exp(scores[item])) for item in (2, 3, 5, 6)]
        expected += weight * math.log1p(math.exp(-scores[right])) + negatives * sum(others) / 4
    assert found == pytest.approx(expected, rel=0.02)
    over_all = torch.nn.functional.cross_entropy(outputs[0], batch.targets[0], reduction="sum")
    assert float(model.eval().loss(outputs, batch)[0]) == pytest.approx(float(over_all)), (
        "validations measure all items"
    )


def test_negatives_are_drawn_evenly_among_the_items_outside_the_history():
    torch.manual_seed(5)
    taken = torch.tensor([[3, 1, 3, 0], [2, 4, 5, 7], [0, 0, 0, 0]])
    drawn, any_left = drawn_others(taken, 8, (11, 700))
    assert drawn.shape == (3, 11, 700) and any_left.all()
    for row, free in zip(drawn, ([2, 4, 5, 6, 7], [1, 3, 6], range(1, 8)), strict=True):
        shares = torch.bincount(row.flatten(), minlength=8) / row.numel()
        expected = [1 / len(free) if item in free else 0.0 for item in range(8)]
        assert torch.allclose(shares, torch.tensor(expected), atol=0.02)
        assert (shares[[item for item in range(8) if item not in free]] == 0).all()
    drawn, any_left = drawn_others(torch.tensor([[1, 2], [2, 0]]), 3, (5,))
    assert any_left.tolist() == [False, True] and drawn.tolist() == [[0] * 5, [1] * 5]


@torch.no_grad()
def test_the_loss_of_a_batch_is_the_cross_entropy_over_all_items(tmp_path):
    task = built(tmp_path)
    torch.manual_seed(1)
    model = models.build("recommender", task.problems()[0], dim=6, layers=1).eval()
    examples = task.examples("train")[:9]
    batch = task.collate(examples, seeded())
    total, count = model.loss(model(batch), batch)
    expected = 0.0
    for one in examples:
        given = task.collate([one], seeded())
        odds = model(given)[0].log_softmax(-1)
        expected -= sum(odds[place, item].item() for place, item in enumerate(one.following))
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(count) == sum(len(one.following) for one in examples)


@pytest.mark.parametrize("name", ["decoder", "lstm-attention"])
def test_other_causal_models_rank_items_too(name, tmp_path):
    task = built(tmp_path)
    model = models.build(f"{name}(dim=8)", task.problems()[0]).eval()
    batch = task.collate(task.examples("test")[:3], seeded())
    with torch.no_grad():
        found = values(task.metrics(), states_of(task.metrics(), Answered(model, batch)))
    assert set(found) == {"loss", "ndcg_at_10", "hit_at_10", "full_ndcg_at_10", "full_hit_at_10"}


def test_what_a_history_attends_to_is_seen():
    model = recommender()
    with observe(model) as seen:
        model(Batch.of(torch.tensor([[3, 7, 18, 2, 5]])))
    weights = seen[seen.names()[-1]].weights()
    assert weights.shape == (1, 1, 5, 5) and (weights.triu(1) == 0).all()
