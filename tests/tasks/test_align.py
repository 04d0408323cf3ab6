"""The task `align`: gold files, yardsticks worked by hand, attention as alignment, and words that have no partner."""

import os
from pathlib import Path

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.formats.gold import Gold, error_rate, quality, read_gold, read_links, tally
from regard_workbench.tasks.generated.toy_language import sentence
from regard_workbench.tasks.measures.alignments import attended_links, diagonal_links, not_one_to_one
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.tasks.measures.word_models import IBM1
from regard_workbench.training import train
from regard_workbench.training.evaluation import evaluation_mode

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
HANSARDS = SHARED / "data" / "alignment"


def seeded():
    return torch.Generator().manual_seed(0)


def test_links_are_the_strongest_weights_and_a_sink_that_is_stronger_leaves_a_word_without():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.3, 0.1], [0.3, 0.3, 0.3], [0.0, 0.0, 0.0]])
    # Row 1: the sink has 0.4, more than any word. Row 2: it has 0.1. Row 3: nothing is attended to.
    assert attended_links(weights) == {(0, 0), (0, 2)}
    assert attended_links(torch.zeros(0, 3)) == set() == attended_links(torch.zeros(2, 0))


def test_the_diagonal_takes_the_word_at_the_same_share_of_the_sentence():
    assert diagonal_links(3, 3) == {(0, 0), (1, 1), (2, 2)}
    assert diagonal_links(2, 4) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert diagonal_links(5, 2) == {(1, 0), (3, 1)}
    assert diagonal_links(0, 2) == set() == diagonal_links(2, 0)


def test_ibm_model_1_learns_the_classic_example():
    the, house, book, a = range(4)
    das, haus, buch, ein = range(4)
    pairs = [([the, house], [das, haus]), ([the, book], [das, buch]), ([a, book], [ein, buch])]
    found = IBM1(pairs, rounds=30)
    assert found.links([the, house], [das, haus]) == {(0, 0), (1, 1)}
    assert found.links([book, a], [ein, buch]) == {(1, 0), (0, 1)}
    assert found.links([the], [77]) == set()  # a word that was never seen
    # One round from equal odds, by hand: t(das|the) = (1/3 + 1/3) / (4/3) with a null word beside two words.
    one = IBM1(pairs, rounds=1)
    at = list(one._codes).index((the + 1) * one._width + das)
    assert one._likely[at] == pytest.approx((1 / 3 + 1 / 3) / (4 / 3))


def test_guided_rows_are_those_that_the_error_rate_reads(tmp_path):
    """A batch of training pairs says where each row should look; one of other splits does not."""
    path = str(written(tmp_path))
    for rows, first in (("written", 0), ("read", 1)):
        task = tasks.build("align", data=path, guide=1.0, rows=rows)
        model = models.build("transformer", task.problems()[0], dim=8, layers=1, num_heads=1)
        task.problem = model.problem
        examples = task.examples("train")
        batch = task.collate(examples, seeded())
        links, guided = batch.answers["guide"].data, batch.answers["guide"].keep
        for place, pair in enumerate(examples):
            count = len(pair.target) - 1  # without the end
            assert guided[place].nonzero().flatten().tolist() == list(range(first, first + count))
            shares = task.word_model.shares(pair.source, pair.target[:-1])
            found = links[place, first : first + count, : len(pair.source)]
            assert torch.allclose(found, torch.from_numpy(shares).float())
            assert links[place].sum() == pytest.approx(shares.sum(), abs=1e-5)
        assert "guide" not in task.collate(task.examples("test"), seeded()).answers
    with pytest.raises(BadValue, match="guide: expected 0 or more"):
        tasks.build("align", guide=-1.0)


def test_what_is_not_one_to_one_is_counted():
    # Word 0 is crossed by 1; words 2 and 3 share source 4; word 4 has no link.
    found = not_one_to_one({(1, 0), (0, 1), (4, 2), (4, 3)}, 5)
    assert found == {"null": 1, "one to many": 2, "reordered": 2, "words": 5}
    assert not_one_to_one(set(), 3) == {"null": 3, "one to many": 0, "reordered": 0, "words": 3}


def test_counts_of_sentence_pairs_add_up_to_the_error_rate_of_all():
    gold = [Gold({(0, 0), (1, 2)}, {(0, 0), (1, 2), (1, 1)}), Gold({(0, 1)}, {(0, 1), (1, 0)})]
    found = [{(0, 0), (1, 1), (2, 2)}, {(1, 0)}]
    counts = [tally(*pair) for pair in zip(found, gold, strict=True)]
    total = {name: counts[0][name] + counts[1][name] for name in counts[0]}
    assert error_rate(total) == pytest.approx(3 / 7) == pytest.approx(quality(found, gold).error_rate)


# Three lines of the form of the published files, and an aligner's output from 0, scored by hand.
PAIRS = "oh , oh ! ||| oh , oh !\nit is so ||| c' est ainsi\nthank you , sir ||| merci , monsieur\n"
GOLD = "2-2 4-4 1-1 3-3\n1-1 2p1 2-2 1p2 3-3\n1-1 2-1 3-2 4p3 4-3\n"
OUTPUT = "3-3 0-0 1-1 2-2\n0-0 1-1 2-0\n0-0 1-0 2-1 0-2\n"


def written(folder, pairs=PAIRS, gold=GOLD):
    (folder / "made.src-tgt").write_text(pairs)
    (folder / "made.gold").write_text(gold)
    (folder / "made.out").write_text(OUTPUT)
    return folder / "made.src-tgt"


def test_the_error_rate_of_an_excerpt_is_the_one_worked_by_hand(tmp_path):
    written(tmp_path)
    found = quality(read_links(tmp_path / "made.out"), read_gold(tmp_path / "made.gold"))
    # |A| = 4 + 3 + 4 = 11, |S| = 4 + 3 + 4 = 11; sure and found 4 + 2 + 3 = 9, possible and found 4 + 2 + 3 = 9.
    assert found.error_rate == pytest.approx(1 - 18 / 22)


def test_pairs_with_gold_links_are_read_and_the_gold_only_judges(tmp_path):
    path = written(tmp_path)
    (tmp_path / "more.src-tgt").write_text("no ||| non\nso it is ||| c' est ainsi\n")
    task = tasks.build("align", data=str(tmp_path))
    counts = {split: len(task.examples(split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 5, "validation": 1, "test": 2}
    assert "gold links only judge" in task.protocol()["pairs"]
    judged = [pair for split in ("validation", "test") for pair in task.examples(split)]
    assert {frozenset(pair.gold.sure) for pair in judged} == {
        frozenset(one.sure) for one in read_gold(tmp_path / "made.gold")
    }
    back = tasks.build("align", data=str(path), reverse=True)
    links = {frozenset(pair.gold.possible) for split in ("validation", "test") for pair in back.examples(split)}
    assert links == {frozenset((b, a) for a, b in one.possible) for one in read_gold(tmp_path / "made.gold")}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pairs": PAIRS + "alone\n"}, r"gold links for 3"),
        ({"pairs": PAIRS.replace("|||", "|")}, r"made\.src-tgt:1: expected `source"),
        ({"gold": GOLD.replace("4-4", "4-5")}, r"made\.gold:1: links word 4 to word 5, but the pair has 4 and 4 words"),
        ({"gold": GOLD.replace("3-3\n1", "3:3\n1")}, r"made\.gold:1: expected links"),
    ],
)
def test_what_is_wrong_with_the_files_is_said_with_file_and_line(tmp_path, given, words):
    with pytest.raises(BadValue, match=words):
        tasks.build("align", data=str(written(tmp_path, **given)))


def test_pairs_without_gold_links_are_refused(tmp_path):
    (tmp_path / "only.src-tgt").write_text(PAIRS)
    with pytest.raises(BadValue, match=r"Give NAME\.gold beside"):
        tasks.build("align", data=str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match=r"holds no file NAME\.src-tgt"):
        tasks.build("align", data=str(tmp_path / "empty"))


def test_the_made_up_language_has_words_without_a_partner_with_two_and_in_another_order():
    total = {"null": 0.0, "one to many": 0.0, "reordered": 0.0, "words": 0.0}
    for number in range(200):
        pair = sentence("validation", number)
        words = pair.source.split(), pair.target.split()
        assert all(source < len(words[0]) and target < len(words[1]) for source, target in pair.gold.sure)
        assert {source for source, _ in pair.gold.sure} == set(range(len(words[0])))
        articles = {place for place, word in enumerate(words[1]) if word in ("lo", "la")}
        assert {target for _, target in pair.gold.sure} == set(range(len(words[1]))) - articles
        for name, count in not_one_to_one(pair.gold.sure, len(words[1])).items():
            total[name] += count
    assert all(total[name] > 0.15 * total["words"] for name in ("null", "one to many", "reordered"))


@pytest.mark.parametrize("name", ["gla", "seq2seq", "transformer", "transformer(cross='multihead(sink=true)')"])
def test_attention_to_the_source_is_that_of_every_layer_and_a_padded_pair_is_as_if_alone(name):
    task = tasks.build("align")
    torch.manual_seed(0)
    model = models.build(name, task.problem, **{"dim": 16, "layers": 2}).double().eval()
    examples = [task.examples("validation")[number] for number in range(3)]
    together = model.attention_to_source(task.collate(examples, seeded()))
    assert together
    for row, example in enumerate(examples):
        alone = model.attention_to_source(task.collate([example], seeded()))
        assert list(alone) == list(together)
        for layer, weights in alone.items():
            _, _, targets, sources = weights.shape
            assert (targets, sources) == (len(example.target), len(example.source))
            torch.testing.assert_close(weights[0], together[layer][row, :, :targets, :sources])


def test_a_sink_takes_weight_and_is_learned():
    from regard.nn import Multihead

    torch.manual_seed(0)
    layer, rows = Multihead(8, 2, sink=True), torch.randn(1, 5, 8)
    assert float(layer.weights(rows).detach().sum(-1).max()) < 1
    with torch.no_grad():
        layer.sink.fill_(-1e4)
    torch.testing.assert_close(layer.weights(rows).detach().sum(-1), torch.ones(1, 2, 5))
    with torch.no_grad():
        layer.sink.fill_(0.5)
    layer(rows).square().sum().backward()
    assert (layer.sink.grad != 0).all()


def test_the_error_rate_of_a_model_is_that_of_its_links_over_all_pairs():
    task = tasks.build("align")
    torch.manual_seed(0)
    model = models.build("seq2seq(dim=16)", task.problem).eval()
    batch = task.collate([task.examples("test")[number] for number in range(5)], seeded())
    metric = task.metrics()[-1]
    state = metric.of(Answered(model, batch))
    (weights,) = model.attention_to_source(batch).values()
    found, gold = [], list(batch.notes["gold"])
    for row, one in enumerate(weights.mean(1)):
        words = int(batch.target_keep[row].sum()) - 1  # without the end
        best = one[:words].argmax(1).tolist()
        found.append({(source, target) for target, source in enumerate(best)})
    assert metric.value(state) == pytest.approx(quality(found, gold).error_rate)
    assert state["pairs"] == 5


@pytest.mark.slow
def test_an_evaluation_compares_every_layer_with_the_diagonal_and_ibm_model_1(tmp_path):
    path = written(tmp_path)
    task = tasks.build("align", data=str(path))
    model = models.build("transformer(dim=8, layers=2, num_heads=2)", task.problem)
    with evaluation_mode(model):
        found = {
            metric.name: metric.value(state)
            for metric, state in task.examine(model, "test", batch_size=2, device="cpu")
        }
    layers = [f"aer decoder.layers.{n}.cross {rows}" for n in range(2) for rows in ("read", "written")]
    assert {*layers, "aer_diagonal", "aer_ibm1", "null", "one_to_many", "reordered", "gold_null"} <= set(found)
    pairs = task.examples("test")
    diagonal = [diagonal_links(len(pair.source), len(pair.target) - 1) for pair in pairs]
    assert found["aer_diagonal"] == pytest.approx(quality(diagonal, [pair.gold for pair in pairs]).error_rate)


@pytest.mark.slow
def test_translate_counts_what_its_attention_does_not_align_one_to_one():
    task = tasks.build("translate", bleu_examples=7)
    torch.manual_seed(0)
    model = models.build("transformer(dim=8, layers=1, num_heads=2, cross='multihead(sink=true)')", task.problem)
    with torch.no_grad():
        model.decoder.layers[0].cross.sink.fill_(50.0)  # attends to nothing
    with evaluation_mode(model):
        found = task.examine(model, "validation", batch_size=3, device="cpu")
        completed = task.completed(model, "validation", batch_size=3, most=5, device="cpu")
    values = {metric.name: metric.value(state) for metric, state in [*found, *completed]}
    assert values["completion_nll"] > 0  # what every translation is examined for
    assert (values["null"], values["one_to_many"], values["reordered"]) == (1.0, 0.0, 0.0)
    examples = task.examples("validation")
    counted = {metric.name: state for metric, state in found}
    assert counted["null"]["words"] == sum(len(examples[number].target) - 1 for number in range(7))


def test_attention_learns_to_align_in_a_few_steps(tmp_path):
    given = {
        "task": "align",
        "out": str(tmp_path / "run"),
        "device": "cpu",
        "steps": 150,
        "model": "seq2seq(dim=32, feeding=none)",
    }
    result = train({**given, "eval_every": 50, "eval_limit": 64, "optim": {"lr": 5e-3}}, quiet=True)
    assert result.best["value"] < 0.5  # the diagonal has 0.53


@pytest.mark.slow
@pytest.mark.skipif(not HANSARDS.is_dir(), reason="no shared data here; REGARD_SHARED names its folder")
def test_the_hansards_are_read_and_the_diagonal_has_its_error_rate():
    task = tasks.build("align", data=str(HANSARDS / "enfr.src-tgt"))
    pairs = [pair for split in ("validation", "test") for pair in task.examples(split)]
    assert len(pairs) == len(task.examples("train")) == 447
    diagonal = [diagonal_links(len(pair.source), len(pair.target) - 1) for pair in pairs]
    assert f"{quality(diagonal, [pair.gold for pair in pairs]).error_rate:.3f}" == "0.538"
