"""Response selection: ranking with ties, the matching tensor against a plain loop, padding that does not matter."""

import json
import pickle

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.answers.ranks import LOOKS, places
from regard_workbench.tasks.formats.exchanges import ReplyChoice, grouped, read_exchanges, read_turns
from regard_workbench.tasks.measures.yardsticks import Nearest, TfIdf, most_frequent
from regard_workbench.training import train
from tests.tasks.test_woz import turn, written


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 29), ("val", 7), ("test", 11)):
        dialogues = [
            [turn(f"question {n}"), turn(f"and then {n} ?", f"answer {name} {n}"), turn("bye", f"again {name} {n}")]
            for n in range(count)
        ]
        written(tmp_path / f"{name}.json", *dialogues)
    return tmp_path


def test_places_and_metrics_are_those_counted_by_hand():
    scores = torch.tensor([[0.5, 0.9, 0.5, 0.1], [2.0, 1.0, 0.0, -torch.inf], [0.0, 0.0, 0.0, 0.0]])
    right = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    # First: one above, one equal, so third. Second: behind one wrong reply both; they are not in each other's way.
    # Third: all equal, so last of four.
    assert places(scores, right)[0, 0] == 3 and places(scores, right)[1, 1:3].tolist() == [2, 2]
    assert places(scores, right)[2, 3] == 4
    found = {name: look.of(scores, right) for name, look in LOOKS.items()}
    assert found["recall_at_1"] == (0, 3) and found["recall_at_2"] == (1, 3) and found["recall_at_5"] == (3, 3)
    assert found["mrr"] == (pytest.approx(1 / 3 + 1 / 2 + 1 / 4), 3)


def test_the_loss_is_the_share_of_the_right_replies():
    task = tasks.build("respond")
    head = task.problem.answer.head()
    scores = torch.randn(3, 5, generator=seeded(), dtype=torch.float64)
    scores[2, 3:] = -torch.inf  # this example has three candidates
    right = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0]])
    batch = tasks.Batch.of(torch.zeros(3, 5), targets=right)
    shares = scores.softmax(-1)
    expected = -sum((shares[row] * right[row]).sum().log() for row in range(3))
    total, count = head.loss(scores, batch)
    assert float(total) == pytest.approx(float(expected), rel=1e-6) and count == 3
    assert head.predict(torch.tensor([[1.0, 2.0, 1.0]]), batch) == [[1, 0, 2]]


def test_wrong_replies_are_drawn_once_by_the_seed_and_never_right_by_chance(folder):
    task, again, other = (tasks.build("respond", data=folder, seed=seed) for seed in (0, 0, 1))
    assert list(task.examples("test")) == list(again.examples("test")) != list(other.examples("test"))
    pool = {f"{kind} test {n}" for kind in ("answer", "again") for n in range(11)}
    assert len(task.examples("test")) == 22
    for one in task.examples("test"):
        assert len(one.replies) == len(set(one.replies)) == 10 and one.right == (True, *[False] * 9)
        assert set(one.replies) <= pool
    assert task.examples("test")[0].context == ("question 0",)
    assert task.examples("test")[1].context == ("question 0", "answer test 0", "and then 0 ?")
    batches = [task.collate(task.examples("train")[:3], seeded(n)) for n in (3, 3, 4)]
    assert batches[0].streams["replies"].data.shape[1] == 4
    drawn = [batch.streams["replies"].data.tolist() for batch in batches]
    assert drawn[0] == drawn[1] != drawn[2], "training draws others for each batch"


def test_too_few_replies_to_draw_from_are_an_error(folder):
    with pytest.raises(BadValue, match=r"candidates: 22 wrong replies are to be drawn.*22 different replies"):
        tasks.build("respond", data=folder, candidates=23).examples("test")


def lines(path, *rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


def test_lines_with_labels_are_grouped_by_their_context(tmp_path):
    path = lines(
        tmp_path / "test.txt",
        ("1", "Hi", "who?", "me"),
        ("0", "Hi", "who?", "No."),
        ("1", "Hi", "who?", "I"),
        ("0", "other", "a"),
        ("1", "other", "b"),
    )
    found = grouped(read_turns(path, "utf-8", True))
    assert found == [
        ReplyChoice(("hi", "who ?"), ("me", "no .", "i"), (True, False, True)),
        ReplyChoice(("other",), ("a", "b"), (False, True)),
    ]
    lines(tmp_path / "train.txt", *[("1", f"q{n}", f"r{n}") for n in range(9)])
    task = tasks.build("respond", data=tmp_path, train_candidates=3)
    assert task.examples("test")[0].replies == ("me", "no .", "i"), "wrong replies that are given are not drawn"
    batch = task.collate(task.examples("test"), seeded())
    assert batch.targets.tolist() == [[1, 0, 1], [0, 1, 0]]
    model = models.build("matcher(dim=8, layers=1, num_heads=2, channels=3)", task.problem).eval()
    assert model(batch)[1, 2] == -torch.inf, "where there is no candidate"
    assert task.collate(task.examples("train")[:2], seeded()).targets.tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("rows", "line", "words"),
    [
        ([("1", "a", "b"), ("1",)], 2, "expected label TAB turn TAB … TAB reply, got 1 column"),
        ([("1", "a")], 1, "got 2 columns"),
        ([("yes", "a", "b")], 1, "expected a label 0 or 1 in the first column, got 'yes'"),
        ([("1", "a", " ")], 1, "the reply is empty"),
        ([("1", " ", "b")], 1, "the context is empty"),
        ([("0", "a", "b"), ("0", "a", "c"), ("1", "d", "e")], 2, "no reply to this context has the label 1"),
        ([("1", "d", "e"), ("0", "a", "c")], 2, "no reply to this context has the label 1"),
    ],
)
def test_wrong_lines_are_refused_with_their_number(tmp_path, rows, line, words):
    path = lines(tmp_path / "bad.txt", *rows)
    with pytest.raises(BadValue, match=words) as refused:
        grouped(read_turns(path, "utf-8", True))
    assert str(refused.value).startswith(f"{path}:{line}: ")


def test_files_without_exchanges_are_refused(tmp_path):
    with pytest.raises(BadValue, match="expected files that end in"):
        read_exchanges(tmp_path, "utf-8", 0, False, labelled=True)


def test_likeness_by_tfidf_is_that_of_scikit_learn():
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = ["a thai place in the north", "the north", "is it cheap ?", "cheap thai thai food", "a a a"]
    others = ["thai food ?", "nothing known here", "the cheap north north"]
    ours = TfIdf(texts)
    theirs = TfidfVectorizer(token_pattern=r"\S+").fit(texts)
    expected = (theirs.transform(others) @ theirs.transform(texts).T).toarray()
    for row, one in enumerate(others):
        for column, other in enumerate(texts):
            assert ours.between(one, other) == pytest.approx(expected[row, column], abs=1e-12)
        best = [n for n in range(len(texts)) if expected[row, n] == pytest.approx(expected[row].max(), abs=1e-12)]
        assert Nearest(texts).to(one) == (0 if expected[row].max() == 0 else best[0])
    assert most_frequent(["b", "a", "b", "a", "c"]) == "a"


def test_the_yardstick_ranks_by_likeness_and_loses_ties(folder):
    task = tasks.build("respond", data=folder)
    task.rows["test"] = [one._replace(reply=one.context[0]) for one in task.rows["test"][::2]]
    found = task.likeness("test")
    assert found["recall_at_1"] == (11, 11), "a reply that repeats the context is the most alike"
    task.rows["test"] = [one._replace(context=("zebra",)) for one in task.rows["test"]]
    assert task.likeness("test")["recall_at_5"] == (0, 11), "no word is shared, so that all are equally alike"


@pytest.fixture
def matched(folder):
    task = tasks.build("respond", data=folder, train_candidates=3)
    torch.manual_seed(2)

    def build(**options):
        model = models.build("matcher(dim=8, layers=2, num_heads=2, channels=3)", task.problem, **options)
        if model.exchanges:
            for part in model.exchanges:
                torch.nn.init.constant_(part.gates, 0.7)
        return model.double().eval()

    return task, build


@torch.no_grad()
def test_the_matching_tensor_is_a_plain_loop_over_turns_and_words(matched):
    """Zhou et al. 2018, equations 3 to 9: self- and cross-attention matches of each pair of words on each level."""
    task, build = matched
    model = build()
    examples = [task.examples("train")[1], task.examples("train")[0]]  # of three turns and of one
    batch = task.collate(examples, seeded())
    found, real = model.matching(batch)
    turns, replies = batch.streams["context"], batch.streams["replies"]
    assert found.shape == (2, 3, 7, 3, *found.shape[4:])

    def attentive(module, rows, source):
        weights = (rows @ source.T / 8**0.5).softmax(-1)
        rows = module.norms[0](rows + weights @ source)
        return module.norms[1](rows + module.feed_forward(rows))

    def encoded(stack, data):
        rows = model.embedding(data[None])
        levels = [rows[0]]
        for layer in stack.layers:
            rows = layer(rows)
            levels.append(stack.norm(rows)[0])
        return levels

    expected = torch.zeros_like(found)
    for b in range(2):
        for c in range(3):
            reply = encoded(model.reply_stack, replies.data[b, c][replies.keep[b, c]])
            for t in range(len(examples[b].context)):
                kept = turns.keep[b, t]
                turn_levels = encoded(model.stack, turns.data[b, t][kept])
                for level, (u, r) in enumerate(zip(turn_levels, reply, strict=True)):
                    crossed = (attentive(model.to_reply[level], u, r), attentive(model.to_turn[level], r, u))
                    for channel, (x, y) in ((2 * level, (u, r)), (2 * level + 1, crossed)):
                        for i in range(len(x)):
                            for j in range(len(y)):
                                expected[b, c, channel, t, i, j] = x[i] @ y[j] / 8**0.5
                expected[b, c, 6, t, : len(u), : len(r)] = 1 / (1 + t)
    assert torch.allclose(found, expected, atol=1e-9)
    assert torch.equal(real[:, :, 0], expected[:, :, 6] != 0)


@pytest.mark.parametrize("exchange", [False, True])
@torch.no_grad()
def test_scores_do_not_depend_on_padding_or_on_what_stands_beside(matched, exchange):
    task, build = matched
    model = build(exchange=exchange)
    examples = [
        one._replace(drawn=0, replies=(*one.replies, "so long and thanks for all the fish"), right=(True, False))
        for one in (task.examples("train")[1], task.examples("train")[4])
    ]
    together = model(task.collate(examples, seeded()))
    for row, one in enumerate(examples):
        alone = task.collate([one], seeded())
        assert torch.allclose(model(alone)[0], together[row], atol=1e-9)
        turned = one._replace(replies=one.replies[::-1], right=one.right[::-1])
        assert torch.allclose(model(task.collate([turned], seeded()))[0], together[row].flip(0), atol=1e-9)
        first = one._replace(replies=one.replies[:1], right=one.right[:1])
        assert torch.allclose(model(task.collate([first], seeded()))[0], together[row, :1], atol=1e-9)
        streams = {
            name: tasks.Stream(
                torch.nn.functional.pad(part.data, (0, 0, 0, 2, 0, 4), value=3),
                torch.nn.functional.pad(part.keep, (0, 2, 0, 4 if name == "context" else 0)),
            )
            if name == "context"
            else part
            for name, part in alone.streams.items()
        }
        padded = tasks.Batch(streams, alone.answers)
        assert torch.allclose(model(padded)[0], together[row], atol=1e-9), "whatever stands in padding"


@torch.no_grad()
def test_an_exchange_with_closed_gates_changes_nothing_and_open_ones_let_the_reply_reach_the_turns(matched):
    task, build = matched
    plain, mutual = build(), build(exchange=True)
    mutual.load_state_dict({**mutual.state_dict(), **plain.state_dict()})
    one = task.examples("train")[1]._replace(drawn=0)
    batches = [
        task.collate([one._replace(replies=(text,), right=(True,))], seeded()) for text in ("answer", "quite another")
    ]
    for model, changes in ((plain, False), (mutual, True)):
        turns = [model.levels(batch)[-1][0] for batch in batches]
        assert torch.allclose(*turns, atol=1e-12) != changes
    for part in mutual.exchanges:
        torch.nn.init.zeros_(part.gates)
    assert torch.allclose(mutual(batches[0]), plain(batches[0]), atol=1e-12)


@torch.no_grad()
def test_turns_count_from_the_newest(matched):
    """The order of turns matters; turns before the last `turns` do not."""
    task, build = matched
    model = build()
    one = task.examples("train")[1]._replace(drawn=0)
    exchanged = one._replace(context=(one.context[2], one.context[1], one.context[0]))
    scores = [model(task.collate([example], seeded())) for example in (one, exchanged)]
    assert not torch.allclose(*scores, atol=1e-6)
    short = tasks.build("respond", task.state(), data="/nowhere", turns=5)
    assert short.parse({"text": "a | b | c | d | e | f | g"}).context == tuple("cdefg")


def test_state_restores_without_files_and_a_typed_context_gets_the_best_known_reply(folder):
    task = tasks.build("respond", data=folder)
    gone = tasks.build("respond", json.loads(json.dumps(task.state())), data="/nowhere/at/all")
    assert gone.problems() == task.problems() and pickle.loads(pickle.dumps(task)).problems() == task.problems()
    example = gone.parse(gone.conversation(["question 3"]))
    assert set(example.replies) == {f"{kind} train {n}" for kind in ("answer", "again") for n in range(29)}
    assert gone.decode([2, 0, 1]) == example.replies[2]
    batch = gone.collate([example], seeded())
    assert batch.answers == {} and gone.show(example, batch).streams["reply"][0] == "[reply]"
    with pytest.raises(BadValue, match="none of them empty"):
        gone.parse({"text": "a | | b"})


def test_the_answer_to_an_example_is_one_of_its_own_replies(folder):
    task = tasks.build("respond", data=folder)
    example = task.examples("test")[3]
    for place in range(len(example.replies)):
        ranked = [place, *(n for n in range(len(example.replies)) if n != place)]
        assert task.answer_text(ranked, example) == example.replies[place]
        assert task.focused(example, ranked).replies == (example.replies[place],)


def test_a_matcher_takes_both_its_encoders_from_one_that_guessed_words(folder, tmp_path):
    common = {"task": "respond(train_candidates=3)", "data": [str(folder)], "steps": 2, "batch_size": 4}
    common["device"] = "cpu"
    hidden = {"model": "encoder(dim=8, layers=1, num_heads=2)", "out": str(tmp_path / "hidden")}
    assert train({**common, **hidden}, quiet=True).metrics.keys() >= {"accuracy"}
    mutual = "matcher(dim=8, layers=1, num_heads=2, channels=3, exchange=true)"
    after = train(
        {**common, "model": mutual, "out": str(tmp_path / "run"), "init_from": str(tmp_path / "hidden")}, quiet=True
    )
    assert after.metrics.keys() >= {"recall_at_1", "recall_at_2", "recall_at_5", "mrr"}
    from regard_workbench.training.build import build_new_model
    from regard_workbench.training.config.recipe import complete

    config = complete({**common, "model": mutual, "init_from": str(tmp_path / "hidden")})
    task = tasks.build("respond", data=str(folder), train_candidates=3)
    model = build_new_model(config, task, lambda text: None)
    own = model.state_dict()
    for name in (name for name in own if name.startswith("stack.")):
        assert torch.equal(own[name], own[f"reply_{name}"]), name
