"""Which side of a translation is read: stated, kept with a run, and never turned round in silence; hints to type."""

import pytest

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.tasks.formats.direction import Direction
from regard_workbench.training import load_run, train
from regard_workbench.training.dry_run import dry_run

PAIRS = [(f"der hund {n} rennt", f"the dog {n} runs") for n in "abcdefghijklmnopqrstu"]


@pytest.fixture
def corpus(tmp_path):
    for place, side in enumerate(("de", "en")):
        (tmp_path / f"train.{side}").write_text("".join(pair[place] + "\n" for pair in PAIRS))
    return tmp_path


@pytest.mark.parametrize(
    ("options", "direction"),
    [
        ({"data": "{0}/train.de,{0}/train.en"}, ("de", "en")),
        ({"data": "{0}/train.en,{0}/train.de"}, ("en", "de")),
        ({"data": "{0}"}, ("en", "de")),  # English is the source where nothing is said
        ({"data": "{0}", "languages": "de,en"}, ("de", "en")),
    ],
)
def test_the_direction_is_that_of_the_examples(corpus, options, direction):
    task = tasks.build("translate", level="word", **{k: v.format(corpus) for k, v in options.items()})
    assert task.direction() == direction
    example = task.examples("train")[0]
    assert task.fitted.source_vocabulary.decode(example.source).split()[0] == {"de": "der", "en": "the"}[direction[0]]


def test_files_without_endings_that_tell_are_called_by_their_names(corpus):
    (corpus / "train.de").rename(corpus / "german.txt")
    (corpus / "train.en").rename(corpus / "english.txt")
    task = tasks.build("translate", data=[corpus / "german.txt", corpus / "english.txt"], level="word")
    assert str(task.direction()) == "reads german.txt, writes english.txt"


def test_generated_dates_have_a_direction_and_other_tasks_none():
    for name in ("dates", "translate"):
        assert tasks.build(name).direction() == Direction("dates as people write them", "ISO dates")
    assert tasks.build("copy").direction() is None


def trained(corpus, out):
    told = []
    settings = {"task": "translate(level=word, bleu_examples=2)", "model": "seq2seq(dim=8)", "steps": 1}
    settings |= {"batch_size": 4, "data": f"{corpus}/train.de,{corpus}/train.en", "out": str(out), "device": "cpu"}
    train(settings, tell=told.append, quiet=True)
    return told, settings


def test_a_run_states_its_direction_at_its_beginning_and_in_what_is_reported(corpus, tmp_path, capsys):
    told, settings = trained(corpus, tmp_path / "run")
    assert told == ["translate(level=word, bleu_examples=2): reads de, writes en."]
    assert dry_run({**settings, "out": str(tmp_path / "other")})["direction"] == "reads de, writes en"
    assert main(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert "reads de, writes en" in capsys.readouterr().out


def test_data_the_other_way_round_are_refused_and_a_folder_is_read_as_the_run_learned_it(corpus, tmp_path):
    trained(corpus, tmp_path / "run")
    with pytest.raises(BadValue, match=r"reads de and writes en, .* the other way round"):
        load_run(tmp_path / "run", data=(f"{corpus}/train.en", f"{corpus}/train.de"))[0].examples("test")
    task = load_run(tmp_path / "run", data=(str(corpus),))[0]
    assert task.direction() == ("de", "en")
    assert task.fitted.source_vocabulary.decode(task.examples("test")[0].source).startswith("der")
    (corpus / "train.de").unlink()
    assert load_run(tmp_path / "run")[0].direction() == ("de", "en")  # known without the data


@pytest.mark.parametrize(
    ("name", "options", "files", "hint"),
    [
        ("classify", {}, {"a.tsv": b"text\tlabel\nsch\xf6n\tgood\n"}, '"classify(encoding=latin-1)"'),
        ("classify", {"level": "bpe"}, {"a.csv": b"text,y\n\xf6,good\n"}, '"classify(level=bpe, encoding=latin-1)"'),
        ("language", {"context": 16}, {"a.txt": b"sch\xf6n\n"}, '"language(context=16, encoding=latin-1)"'),
        ("classify", {}, {"a.tsv": b"1\t2\t3\n4\t5\t6\n"}, '"classify(text_column=1, label_column=2)"'),
    ],
)
def test_a_hint_can_be_typed_as_it_stands(tmp_path, name, options, files, hint):
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadValue) as caught:
        tasks.build(name, data=tmp_path / next(iter(files)), **options).examples("train")
    assert hint in str(caught.value)
    found, given = parse(hint.strip('"'))
    assert found == name and options.items() <= given.items()


def test_the_hint_for_languages_is_read_back_as_two(tmp_path):
    for side in ("de", "en", "fr"):
        (tmp_path / f"train.{side}").write_text("a\n")
    with pytest.raises(BadValue) as caught:
        tasks.build("translate", data=tmp_path)
    hint = "translate(languages='en,de')"
    assert f'"{hint}"' in str(caught.value)
    assert parse(hint) == ("translate", {"languages": "en,de"})
