"""Words with parts: n-grams and hashes by hand, batches, the embedding against its formula, a run loaded again."""

import subprocess
import sys
import zlib

import pytest
import torch

import regard
from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.models.parts.word_parts import WordPartsEmbedding
from regard_workbench.tasks.text.vocabulary import UNKNOWN
from regard_workbench.tasks.text.word_parts import MOST, WordsWithParts, ngrams, part_ids, parts_of
from regard_workbench.training.loading import load

RANDOM = torch.Generator()
COUNT = 997


@pytest.fixture
def table(tmp_path):
    """A folder whose dev and test files hold words that training does not."""
    (tmp_path / "train.tsv").write_text("unfunny film\t0\nfunny film\t1\na funny plot twist here\t1\nplot\t0\n")
    (tmp_path / "dev.tsv").write_text("funnier plots\t1\nunfunniest\t0\n")
    (tmp_path / "test.tsv").write_text("funnily\t1\nfilms\t0\n")
    return tmp_path


def test_ngrams_of_a_word_are_these():
    assert ngrams("cats") == ["<ca", "cat", "ats", "ts>", "<cat", "cats", "ats>", "<cats", "cats>", "<cats>"]
    assert ngrams("a") == ["<a>"]
    assert ngrams("né", 3, 3) == ["<né", "né>"]


def test_the_checksum_is_the_standard_crc_32_and_parts_are_equal_in_another_process():
    assert zlib.crc32(b"123456789") == 0xCBF43926  # the check value of the catalogue of CRC algorithms
    text = "from regard_workbench.tasks.text.word_parts import part_ids; print(*part_ids('naïveté', 20011))"
    for seed in ("0", "1"):  # of Python's own hash, which differs between processes
        run = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert tuple(map(int, run.stdout.split())) == part_ids("naïveté", 20011)
    # CRC-32 by hand, bit by bit, of "<a>": the polynomial 0xEDB88320
    value = 0xFFFFFFFF
    for byte in b"<a>":
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xEDB88320 * (value & 1)
    assert part_ids("a", COUNT) == (1 + (value ^ 0xFFFFFFFF) % COUNT,)


def test_ids_of_parts_are_between_1_and_their_number_and_words_have_at_most_20():
    words = ["a", "word", "y" * 20_011, "👩‍👩‍👧‍👦", "\x00"]
    rows = parts_of(words, 7)
    assert rows.shape == (5, MOST) and int(rows.max()) <= 7 and int(rows.min()) == 0
    assert (rows != 0).sum(1).tolist() == [min(MOST, len(ngrams(word))) for word in words]
    assert parts_of([], 7).shape == (0, MOST)


def test_a_batch_holds_words_and_parts_and_unknown_words_have_parts(table):
    task = tasks.build("classify", data=table, parts=COUNT, min_count=2)
    batch = task.collate(list(task.examples("validation")), RANDOM)
    assert batch.inputs.shape == (2, 2, 1 + MOST) and batch.keep.tolist() == [[True, True], [True, False]]
    assert batch.inputs[..., 0].tolist() == [[UNKNOWN, UNKNOWN], [UNKNOWN, 0]]
    for row, column, word in ((0, 0, "funnier"), (0, 1, "plots"), (1, 0, "unfunniest")):
        assert batch.inputs[row, column, 1:].tolist() == parts_of([word], COUNT)[0].tolist()
    assert not batch.inputs[1, 1].any()
    assert isinstance(task.problem.inputs, WordsWithParts) and task.problem.inputs.parts == COUNT
    typed = task.collate([task.encode(" funnier  plots ")], RANDOM)
    assert torch.equal(typed.inputs[0], batch.inputs[0])


def test_the_rest_of_a_batch_is_as_without_parts(table):
    plain, parted = (tasks.build("classify", data=table, hide=0.5, parts=parts) for parts in (0, COUNT))
    batches = [task.collate(list(task.examples("train")), torch.Generator().manual_seed(5)) for task in (plain, parted)]
    assert torch.equal(batches[0].inputs, batches[1].inputs[..., 0])
    assert torch.equal(batches[0].keep, batches[1].keep) and torch.equal(batches[0].targets, batches[1].targets)


def test_a_hidden_word_has_no_parts(table):
    task = tasks.build("classify", data=table, hide=0.5, parts=COUNT)
    inputs = task.collate(list(task.examples("train")), torch.Generator().manual_seed(3)).inputs
    hidden, seen = inputs[..., 0] == UNKNOWN, inputs[..., 0] > UNKNOWN
    assert bool(hidden.any()) and bool(seen.any())
    assert not inputs[hidden][:, 1:].any() and bool((inputs[seen][:, 1:] != 0).any(1).all())


def test_long_texts_are_cut_with_their_parts(table):
    task = tasks.build("classify", data=table, parts=COUNT, max_length=2)
    batch = task.collate(list(task.examples("train")), RANDOM)
    assert batch.inputs.shape == (4, 2, 1 + MOST)


def test_only_words_have_parts(table):
    with pytest.raises(BadValue, match="parts: only words have parts, got level='bpe'"):
        tasks.build("classify", data=table, parts=COUNT, level="bpe")
    with pytest.raises(BadValue, match="parts"):
        tasks.build("classify", data=table, parts=-1)


def test_a_words_vector_is_its_own_and_those_of_its_parts_over_the_root_of_their_number():
    embedding = WordPartsEmbedding(WordsWithParts(7, parts=5), 3)
    with torch.no_grad():
        embedding.words.weight.copy_(torch.arange(21.0).view(7, 3))
        embedding.parts.weight.copy_(100 * torch.arange(18.0).view(6, 3))
        embedding.parts.weight[0] = torch.nan  # never read
    ids = torch.tensor([[[2, 1, 3, 3, 5, 0], [6, 0, 0, 0, 0, 0], [1, 4, 0, 0, 0, 0]]])
    # parts 1, 3, 3, 5: (300 + 900 + 900 + 1500) / √4 = 1800, and 100 more with each column × 4 / 2 = 200
    expected = [[6 + 1800, 7 + 2000, 8 + 2200], [18, 19, 20], [3 + 1200, 4 + 1300, 5 + 1400]]
    assert embedding(ids).tolist() == [[pytest.approx(row) for row in expected]]


def test_new_vectors_are_small_and_no_part_is_zero():
    embedding = WordPartsEmbedding(WordsWithParts(5003, parts=7001), 13)
    assert float(embedding.words.weight[2:].detach().std()) == pytest.approx(0.1, rel=0.03)
    assert float(embedding.parts.weight[1:].detach().std()) == pytest.approx(0.1, rel=0.03)
    assert not embedding.words.weight[:2].any() and not embedding.parts.weight[0].any()


@pytest.mark.parametrize("name", ["encoder", "static-transformer", "dynamic-transformer", "lstm-attention"])
def test_padding_changes_nothing_and_gets_no_gradient(table, name):
    task = tasks.build("classify", data=table, parts=COUNT)
    torch.manual_seed(0)
    model = models.build(name, task.problem, dim=16, layers=1).double().eval()
    examples = list(task.examples("train"))
    together = model(task.collate(examples, RANDOM))
    alone = torch.cat([model(task.collate([example], RANDOM)) for example in examples])
    assert torch.allclose(together, alone, atol=1e-10)
    together.square().sum().backward()
    table_of_parts = model.embedding.rows.parts.weight.grad
    used = {number for example in examples for number in example.parts.flatten().tolist()} - {0}
    assert set(table_of_parts.any(1).nonzero().flatten().tolist()) == used


def test_a_run_with_parts_is_evaluated_and_loaded_as_it_was_trained(table, tmp_path):
    settings = {"model": "lstm-attention(dim=16)", "data": table, "batch_size": 2, "device": "cpu", "quiet": True}
    run = regard.train(f"classify(parts={COUNT})", steps=3, seed=1, out=tmp_path / "run", **settings)
    loaded = load(run.folder, checkpoint="last", device="cpu")
    weights = loaded.model.state_dict()
    assert weights["embedding.rows.parts.weight"].shape == (COUNT + 1, 16)
    assert not weights["embedding.rows.parts.weight"][0].any()  # no part has no vector after training either
    with torch.no_grad():
        known, other = (
            loaded.model(loaded.task.collate([loaded.task.encode(text)], RANDOM)) for text in ("zzz", "zzzz")
        )
    assert not torch.equal(known, other)  # both are unknown words, with other parts
    measured = regard.evaluate(run, "test", device="cpu", checkpoint="last")
    with torch.no_grad():
        guessed = loaded.model(loaded.task.collate(list(loaded.task.examples("test")), RANDOM)).argmax(-1)
    assert measured["accuracy"] == pytest.approx(float((guessed == torch.tensor([1, 0])).float().mean()))
