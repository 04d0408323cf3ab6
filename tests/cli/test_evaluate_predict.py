"""`regard evaluate` on runs trained for a moment, against numbers computed another way; help of both verbs."""

import hashlib
import json
import math
import re
import shutil

import pytest
import torch
import torch.nn.functional as F

from regard import decoding
from regard_workbench import tasks
from regard_workbench.cli.common.command import verbs
from regard_workbench.cli.main import main
from regard_workbench.models.parts import stack
from regard_workbench.tasks import Batch
from regard_workbench.training import load_run
from regard_workbench.training.evaluation import decoding_of
from tests.cli.trained import TEXT, answered, called, written_by_hand


def evaluated(capsys, *arguments):
    found = answered(capsys, "evaluate", *arguments)
    return {row["metric"]: row for row in found["metrics"]}, found


@pytest.mark.parametrize("run", ["dates", "dates-transformer"])
@torch.no_grad()
def test_loss_accuracy_and_exact_match_are_those_of_one_example_after_the_other(run, runs, capsys):
    rows, found = evaluated(capsys, runs[run], "--batch-size", 5)
    task, model, _ = load_run(runs[run])
    cost, right, exact, tokens = 0.0, 0, 0, 0
    for pair in task.examples("test"):
        inputs, target = torch.tensor([pair.source]), torch.tensor([pair.target])
        odds = model(Batch.of(inputs, targets=target))[0].double().log_softmax(-1)
        cost -= sum(float(odds[i, token]) for i, token in enumerate(pair.target))
        right += sum(int(odds[i].argmax()) == token for i, token in enumerate(pair.target))
        exact += task.decode(written_by_hand(model, inputs)) == pair.reference
        tokens += len(pair.target)
    count = len(task.examples("test"))
    assert rows["loss"]["value"] == pytest.approx(cost / tokens, rel=1e-5)
    assert rows["accuracy"]["value"] == pytest.approx(right / tokens)
    assert rows["exact_match"]["value"] == exact / count
    assert (rows["loss"]["count"], rows["exact_match"]["count"]) == (tokens, count)
    assert found["examples"] == count and found["split"] == "test"


def test_the_signature_says_what_was_evaluated(runs, capsys):
    _, found = evaluated(capsys, runs["dates"], "--beam", 2, "--limit", 3, "--checkpoint", "last")
    signature = found["signature"]
    weights = runs["dates"] / "checkpoints" / signature["checkpoint"] / "model.safetensors"
    assert signature["checkpoint"] == "step-00000003"
    assert signature["checkpoint_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert signature["decoding"] == {"method": "beam", "beam": 2, "length_penalty": 1.0, "max_length": 11}
    assert signature["torch"] == torch.__version__ and signature["examples"] == 3
    assert {"run", "task", "model", "data", "regard", "device", "seed", "split"} <= signature.keys()


def test_the_length_penalty_is_the_tasks_unless_it_is_given(runs, capsys, monkeypatch):
    asked = []
    searched = decoding.beam_search
    monkeypatch.setattr(
        stack, "beam_search", lambda *given, **options: asked.append(options) or searched(*given, **options)
    )
    _, found = evaluated(capsys, runs["dates"], "--beam", 2, "--limit", 3, "--length-penalty", 0.25)
    assert found["signature"]["decoding"]["length_penalty"] == 0.25
    assert {options["length_penalty"] for options in asked if options["beam"] == 2} == {0.25}
    out = called(capsys, "evaluate", runs["dates"], "--beam", 2, "--limit", 3, "--length-penalty", 0.25)[1]
    assert "beam of 2, length penalty 0.25, at most 11 tokens" in out
    task = tasks.build("translate(length_penalty=0.5)")
    assert task.problem.answer.decoding(3)["length_penalty"] == 0.5
    assert decoding_of(task, 3) == {**decoding_of(task, 3, 0.25), "length_penalty": 0.5}
    assert tasks.build("translate").problem.answer.decoding(3)["length_penalty"] == 1.0
    for verb in ("evaluate", "predict"):
        code, _, err = called(capsys, verb, runs["dates"], "--length-penalty", 0.5)
        assert code == 2 and "--length-penalty: only beam search" in err
        code, _, err = called(capsys, verb, runs["dates"], "--beam", 2, "--length-penalty", "1e999")
        assert code == 2 and "--length-penalty: expected a finite number" in err


def test_the_score_of_a_prediction_is_its_log_probability_over_its_length_to_the_penalty(runs, capsys):
    scores = {}
    for penalty in (None, 0, 0.5):
        more = () if penalty is None else ("--length-penalty", penalty)
        (found,) = answered(capsys, "predict", runs["dates"], "--text", "May 3 1979", "--beam", 1, *more)
        scores[penalty], count = found["score"], len(found["tokens"])
    assert scores[0] == pytest.approx(scores[None] * count, rel=1e-4)
    assert scores[0.5] == pytest.approx(scores[None] * count**0.5, rel=1e-4)


def test_a_setting_changed_on_resume_is_shown_beside_the_metrics(runs, tmp_path, capsys):
    shutil.copytree(runs["classify"], tmp_path / "run")
    resumed = ("train", "--resume", tmp_path / "run", "--steps", 2, "--optim.lr", 0.25, "--log-every", 7)
    assert called(capsys, *resumed)[0] == 0
    found = evaluated(capsys, tmp_path / "run", "--limit", 3, "--checkpoint", "last")[1]
    assert {"step": 1, "setting": "optim.lr", "was": 5e-4, "now": 0.25} in found["signature"]["changes"]
    out = called(capsys, "evaluate", tmp_path / "run", "--limit", 3, "--checkpoint", "last", "--device", "cpu")[1]
    flowed = " ".join(out.split())
    assert "optim.lr 0.25 (was 0.0005) from step 1 on" in flowed and "log_every" not in flowed
    assert evaluated(capsys, runs["classify"], "--limit", 3)[1]["signature"]["changes"] == []


def test_the_hash_of_the_data_depends_on_the_examples_and_not_on_the_batch_size(runs, capsys):
    def digest(*arguments):
        return evaluated(capsys, runs["dates"], *arguments)[1]["signature"]["data_sha256"]

    assert digest("--batch-size", 3) == digest("--batch-size", 13)
    assert digest() != digest("--limit", 12) and digest() != digest("--split", "validation")


@torch.no_grad()
def test_perplexity_and_completion_of_a_language_run(runs, capsys):
    rows, found = evaluated(capsys, runs["language"], "--batch-size", 3)
    task, model, _ = load_run(runs["language"])
    ids, cost = task.tokens("test"), 0.0
    for begin in range(0, len(ids) - 1, 23):
        start = min(begin, len(ids) - 24)  # the last window is full: it repeats some, and asks for none of that twice
        window = ids[start : start + 24]
        logits = model(Batch.of(window[None, :-1]))[0, begin - start :]
        cost += float(F.cross_entropy(logits, window[1 + begin - start :], reduction="sum"))
    assert rows["loss"]["count"] == len(ids) - 1
    assert rows["perplexity"]["value"] == pytest.approx(math.exp(cost / (len(ids) - 1)), rel=1e-5)

    sentences = [part.strip() + mark for part, mark in _sentences(task.texts["test"])]
    sums = {"": [0.0, 0], "teacher_forced_": [0.0, 0]}
    judged = 0
    for sentence in sentences:
        ids = task.fitted.vocabulary.encode(sentence)[:24]
        half = len(ids) // 2
        own = ids[:half]
        for place in range(half, len(ids)):
            judged += 1
            for prefix, given in (("", own), ("teacher_forced_", ids[:place])):
                odds = model(Batch.of(torch.tensor([given])))[0, -1].log_softmax(-1)
                sums[prefix][0] -= float(odds[ids[place]])
                sums[prefix][1] += int(odds.argmax()) == ids[place]
                if not prefix:
                    following = int(odds.argmax())
            own = [*own, following]
    for prefix, (nll, right) in sums.items():
        assert rows[f"{prefix}completion_nll"]["count"] == judged
        assert rows[f"{prefix}completion_nll"]["value"] == pytest.approx(nll / judged, rel=1e-5)
        assert rows[f"{prefix}completion_accuracy"]["value"] == pytest.approx(right / judged)
    assert "second half" in found["signature"]["completion"]


def _sentences(text):
    """The sentences of `TEXT`, which end at . and ! alone."""
    begin = ""
    for letter in text:
        if letter in ".!":
            yield begin, letter
            begin = ""
        else:
            begin += letter


def test_a_model_that_accepts_no_padding_can_be_measured(runs, capsys):
    one, _ = evaluated(capsys, runs["segments"], "--batch-size", 1)
    many, _ = evaluated(capsys, runs["segments"], "--batch-size", 7)
    assert many.keys() == one.keys()
    for name, row in one.items():
        assert many[name]["value"] == pytest.approx(row["value"], rel=1e-5)


@pytest.mark.slow
def test_hidden_tokens_and_classes_and_bits_have_their_measures(runs, capsys):
    assert {"loss", "accuracy", "perplexity", "completion_nll"} <= evaluated(capsys, runs["masked"])[0].keys()
    assert {"loss", "accuracy", "macro_f1"} <= evaluated(capsys, runs["classify"], "--limit", 11)[0].keys()
    assert evaluated(capsys, runs["digits"])[0]["accuracy"]["count"] == 269
    rows, _ = evaluated(capsys, runs["copy"], "--limit", 7, "--batch-size", 3)
    task, model, _ = load_run(runs["copy"])
    cost = 0.0
    for index in range(7):
        tape = task.examples("test")[index]
        with torch.no_grad():
            logits = model(Batch.of(torch.from_numpy(tape.inputs)[None].float()))[0, tape.answer :]
        wanted = torch.from_numpy(tape.targets)[tape.answer :].float()
        cost -= float((wanted * F.logsigmoid(logits) + (1 - wanted) * F.logsigmoid(-logits)).sum()) / math.log(2)
    assert rows["bits_per_sequence"]["value"] == pytest.approx(cost / 7, rel=1e-5)
    assert rows["bits_per_sequence"] | {"value": 0, "text": ""} == {
        "metric": "bits_per_sequence",
        "value": 0,
        "count": 7,
        "of": "sequences",
        "text": "",
    }


def test_bleu_is_that_of_sacrebleu_and_comes_with_its_signature(runs, capsys):
    from sacrebleu.metrics.bleu import BLEU

    rows, found = evaluated(capsys, runs["translate"], "--limit", 5)
    task, model, _ = load_run(runs["translate"])
    texts, references = [], []
    with torch.no_grad():
        for index in range(5):
            pair = task.examples("test")[index]
            texts.append(task.decode(written_by_hand(model, torch.tensor([pair.source]))))
            references.append(pair.reference)
    bleu = BLEU(tokenize="13a")
    assert rows["bleu"]["value"] == pytest.approx(bleu.corpus_score(texts, [references]).score)
    assert found["signature"]["bleu"] == str(bleu.get_signature())
    assert rows["bleu"]["count"] == 5


def test_a_file_the_run_does_not_know_is_measured_as_a_whole(runs, capsys, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("The old boat waited. A man came in.\n" * 3)
    rows, found = evaluated(capsys, runs["language"], "--data", other)
    assert rows["loss"]["count"] == len(other.read_text()) - 1
    assert found["signature"]["data"] == [str(other)]
    same, _ = evaluated(capsys, runs["language"], "--data", runs.home / "book.txt")
    assert same["loss"]["count"] < len(TEXT * 40) // 10  # the run's own file is split as it was


def test_a_pipe_gets_a_table_without_colours(runs, capsys):
    code, out, _ = called(capsys, "evaluate", runs["dates"], "--limit", 2)
    assert code == 0 and "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "exact_match" in out and "22 tokens" in out and "greedy, at most 11 tokens" in out
    assert "step-0000000" in out and "test, 2 examples" in out


def test_a_wrong_call_is_reported_with_exit_code_two(runs, capsys, tmp_path):
    for verb in ("evaluate", "predict"):
        code, _, err = called(capsys, verb, tmp_path / "nowhere")
        assert code == 2 and "there is no run" in err
        code, _, err = called(capsys, verb, runs["dates"], "--checkpoint", "step-7")
        assert code == 2 and "Known: best, last, step-" in err
    code, _, err = called(capsys, "evaluate", runs["language"], "--beam", 3)
    assert code == 2 and "--beam" in err
    code, _, err = called(capsys, "evaluate", runs["language"], "--data", tmp_path / "missing.txt")
    assert code == 2 and "there is no file" in err and "missing.txt" in err
    code, _, err = called(capsys, "evaluate", runs["dates"], "--data", tmp_path)
    assert code == 2 and "makes its own examples" in err
    code, _, err = called(capsys, "evaluate", runs["dates"], "--limit", 0)
    assert code == 2 and "--limit" in err
    code, _, err = called(capsys, "evaluate", runs["dates"], "--data", "")
    assert code == 2 and "--data" in err


def test_a_damaged_checkpoint_is_reported_and_an_error_only_without_an_intact_one(runs, capsys, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs["dates"], copy)
    damaged = copy / "checkpoints" / "step-00000003" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    code, out, err = called(capsys, "evaluate", copy, "--limit", 2, "--json")
    assert code == 0 and "damaged" in err
    assert json.loads(out)["signature"]["checkpoint"] == "step-00000002"
    code, _, err = called(capsys, "evaluate", copy, "--checkpoint", "3")
    assert code == 1 and "SHA-256" in err
    for path in (copy / "checkpoints").glob("step-*/manifest.json"):
        path.write_text("{")
    typed = ["--text", "May 3 1979"]
    page = ["--export", str(tmp_path / "page.html")]
    for verb, more in (("evaluate", []), ("predict", typed), ("view", page), ("cause", typed)):
        for checkpoint in ("best", "last", "2"):
            code, out, err = called(capsys, verb, copy, "--checkpoint", checkpoint, *more)
            assert code == 1 and "damaged checkpoint" in err and not out
    shutil.rmtree(copy / "checkpoints")
    code, _, err = called(capsys, "evaluate", copy)
    assert code == 2 and "no checkpoint yet" in err


@pytest.mark.parametrize("verb", ["attack", "evaluate", "predict"])
def test_help_ends_in_two_real_commands(verb, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    joined = re.sub(r" \\\n +", " ", capsys.readouterr().out)  # a long command is continued as a shell reads it
    last = [line.strip() for line in joined.splitlines()[-2:]]
    assert last == list(verbs()[verb].EXAMPLES) and all(line.startswith(f"regard {verb} ") for line in last)


def test_a_metric_over_nothing_is_shown_without_a_count(capsys):
    """The F1 of a type of entities that the test split lacks ended `regard evaluate` with a traceback."""
    from collections import defaultdict

    from regard_workbench.cli.evaluate import _show
    from regard_workbench.comparison.evaluate import Evaluation, MeasuredMetric

    signature = defaultdict(str, run="runs/tag", task="tag", model="tagger", examples=7, decoding={}, changes=[])
    rows = [MeasuredMetric("f1", 0.5, 11, "entities", "50 %"), MeasuredMetric("f1_place", None, None, "entities", "–")]
    _show(Evaluation(rows, "test", 7, "f1", signature, {}))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["f1", "0.5", "11", "entities"] in shown and ["f1_place", "none"] in shown
