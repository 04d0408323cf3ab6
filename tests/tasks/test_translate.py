"""translate: parallel files in every form, BLEU over batches equal to BLEU of the corpus, mistakes with counts."""

import gzip

import pytest
import sacrebleu
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.text.vocabulary import END
from tests.tasks.stand_ins import Fixed, certain, judged, rows_of

RANDOM = torch.Generator()
ENGLISH = [f"the {n} old {'dog' if n % 2 else 'cat'} sees a house ." for n in range(41)]
GERMAN = [f"{'der' if n % 2 else 'die'} {n} alte {'Hund' if n % 2 else 'Katze'} sieht ein Haus ." for n in range(41)]


@pytest.fixture
def corpus(tmp_path):
    for name, size, packed in (("train", 41, True), ("val", 7, False), ("test_2016", 5, True)):
        for language, lines in (("en", ENGLISH), ("de", GERMAN)):
            text = "".join(f"{line}\n" for line in lines[:size]).encode()
            path = tmp_path / f"{name}.{language}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(text) if packed else text)
    return tmp_path


def test_a_folder_is_read_english_first(corpus):
    task = tasks.build("translate", data=corpus, level="word")
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [41, 7, 5]
    assert task.rows["test"][3] == (ENGLISH[3], GERMAN[3])
    pair = task.examples("test")[3]
    assert task.fitted.source_vocabulary.decode(pair.source) == ENGLISH[3]
    assert task.decode(pair.target) == GERMAN[3] == pair.reference and pair.target[-1] == END


def test_languages_say_which_way(corpus):
    task = tasks.build("translate", data=corpus, languages="de,en", level="word")
    assert task.rows["train"][2] == (GERMAN[2], ENGLISH[2])
    with pytest.raises(BadValue, match=r"has no file (test|train)\.fr"):
        tasks.build("translate", data=corpus, languages="en,fr")
    with pytest.raises(BadValue, match="languages: expected two"):
        tasks.build("translate", data=corpus, languages="en")
    (corpus / "train.fr").write_text("x\n")
    with pytest.raises(BadValue, match=r"languages: .* has files of de, en, fr; say which two"):
        tasks.build("translate", data=corpus)


def test_two_files_are_split_without_overlap(tmp_path):
    (tmp_path / "a.txt").write_text("\r\n".join(ENGLISH))
    (tmp_path / "b.txt").write_text("\n".join(GERMAN))
    task = tasks.build("translate", data=f"{tmp_path}/a.txt,{tmp_path}/b.txt", level="character")
    found = [pair for split in task.rows.values() for pair in split]
    assert sorted(found) == sorted(zip(ENGLISH, GERMAN, strict=True))
    assert [len(task.rows[split]) for split in ("train", "validation", "test")] == [33, 4, 4]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("level", ["bpe", "word", "character"])
def test_vocabularies_are_joint_or_separate(corpus, level, joint):
    task = tasks.build("translate", data=corpus, level=level, joint=joint, vocabulary_size=300)
    assert (task.fitted.source_vocabulary is task.fitted.target_vocabulary) == joint
    assert task.problem.inputs.count == len(task.fitted.source_vocabulary)
    assert task.problem.answer.outputs == len(task.fitted.target_vocabulary)
    for pair in task.examples("train"):
        assert len(pair.source) <= task.problem.inputs.length and len(pair.target) <= task.problem.answer.length
    assert max(len(pair.target) for pair in task.examples("train")) == task.problem.answer.length


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    with pytest.raises(BadValue, match=r"a\.en has 3 lines, .*a\.de has 2"):
        tasks.build("translate", data=[tmp_path / "a.en", tmp_path / "a.de"])


def test_one_sided_empty_lines_are_named_and_two_sided_ones_left_out(tmp_path):
    (tmp_path / "a.en").write_text("one\n\nthree\nfour\nfive\n")
    (tmp_path / "a.de").write_text("eins\n\ndrei\n \nfünf\n")
    with pytest.raises(BadValue, match=r"a\.de:4: is empty, but .*a\.en is not"):
        tasks.build("translate", data=[tmp_path / "a.en", tmp_path / "a.de"])
    (tmp_path / "a.de").write_text("eins\n\ndrei\nvier\nfünf\n")
    task = tasks.build("translate", data=[tmp_path / "a.en", tmp_path / "a.de"], level="word")
    assert sum(len(part) for part in task.rows.values()) == 4


def test_one_file_alone_is_refused(tmp_path):
    (tmp_path / "a.en").write_text("one\n")
    with pytest.raises(BadValue, match="data: expected two parallel files SOURCE,TARGET or a folder"):
        tasks.build("translate", data=tmp_path / "a.en")
    (tmp_path / "train.en").write_text("one\n")
    with pytest.raises(BadValue, match=r"languages: .* has files of en"):
        tasks.build("translate", data=tmp_path)


def test_long_training_pairs_are_left_out_and_counted_others_cut(tmp_path):
    for language in ("en", "de"):
        for split in ("train", "val", "test"):
            (tmp_path / f"{split}.{language}").write_text("a b c\n" + "a " * 20 + "\na c\n")
    task = tasks.build("translate", data=tmp_path, level="word", max_length=5, languages="en,de")
    assert len(task.examples("train")) == 2 and task.left_out == 1
    cut = task.examples("test")[1]
    assert len(cut.source) == 5 and len(cut.target) == 5 and cut.target[-1] == END
    assert cut.reference == ("a " * 20).strip(), "a reference is never cut"
    with pytest.raises(BadValue, match="max_length: every training pair is longer than 2"):
        tasks.build("translate", data=tmp_path, level="word", max_length=2).examples("train")


def changed(lines):
    return [line.replace("alte", "kleine") if n % 3 else line.removesuffix(" .") for n, line in enumerate(lines)]


def test_bleu_over_batches_is_bleu_of_the_corpus(corpus):
    task = tasks.build("translate", data=corpus, level="character")
    examples = list(task.examples("test")) + [
        example._replace(reference=GERMAN[n]) for n, example in enumerate(task.examples("train"))
    ]
    references = [example.reference for example in examples]
    written = changed(references)
    count, models, batches = task.problem.answer.count, [], []
    for begin in range(0, len(examples), 11):
        texts = written[begin : begin + 11]
        model = Fixed(
            lambda b: certain(b.targets, count),
            lambda b, texts=texts: [[*task.fitted.target_vocabulary.encode(text), END] for text in texts],
        )
        models.append(model)
        batches.append(task.collate(examples[begin : begin + 11], RANDOM))
    found = judged(task, models, *batches)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [references]).score)
    assert 10 < found["bleu"] < 90
    right = sum(a == b for a, b in zip(written, references, strict=True))
    assert found["exact_match"] == right / len(references)
    assert set(found) == {"loss", "accuracy", "perplexity", "bleu", "exact_match"}
    assert task.signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_validation_writes_for_some_sentences_only(corpus):
    task = tasks.build("translate", data=corpus, level="word", bleu_examples=3)
    marked = [pair.reference is not None for pair in task.examples("validation")]
    assert sum(marked) == 3 and marked[0]
    assert all(pair.reference is not None for pair in task.examples("test"))
    assert all(pair.reference is None for pair in task.examples("train"))
    batch = task.collate(list(task.examples("validation")), RANDOM)
    model = Fixed(lambda b: certain(b.targets, task.problem.answer.outputs), lambda b: [[END]] * b.size)
    found = judged(task, model, batch)
    assert model.asked[0].size == 3 and found["bleu"] == 0.0 and found["exact_match"] == 0.0
    chosen = [list(pair.source) for pair in task.examples("validation") if pair.reference]
    assert rows_of(model.asked[0]) == chosen
    moved = batch.to("cpu")
    assert moved.notes == batch.notes and len(batch.notes["references"]) == batch.size, (
        "what a batch carries goes along to a device"
    )
    train = task.collate(list(task.examples("train")[:3]), RANDOM)
    assert "bleu" not in judged(task, model, train)


def test_without_data_the_dates_are_translated():
    task, dates = tasks.build("translate"), tasks.build("dates")
    for split in ("train", "validation", "test"):
        one, other = task.examples(split)[17], dates.examples(split)[17]
        assert task.fitted.source_vocabulary.decode(one.source) == dates.fitted.source_vocabulary.decode(other.source)
        assert task.decode(one.target) == dates.decode(other.target)
    assert task.problem.inputs.length == 32 and task.problem.answer.length == 11


def test_an_unknown_way_to_split_words_is_refused(corpus):
    task = tasks.build("translate", data=corpus, level="word", bleu_tokenize="14a")
    with pytest.raises(BadValue, match="bleu_tokenize: there is no '14a'"):
        task.signature()
