"""Models whose outputs are bits or numbers on their own have no likeliest class; heads of one step are no layers."""

import pytest
import torch

import regard
from regard.errors import RegardError
from regard.observation.causes.measures import answers_with_a_class
from regard.observation.causes.rerun import layers_of
from regard_workbench import models, tasks
from regard_workbench.inspection.examples import choose, prepare


@pytest.fixture(scope="module")
def machine():
    """A Neural Turing Machine that copies rows of three bits, and one observed example."""
    task = tasks.build("copy(max_length=5,bits=3)")
    problem = task.problems()[0]
    task.pose(problem)
    torch.manual_seed(0)
    model = models.build("ntm(slots=11, width=5, hidden=13)", problem).eval()
    batch, _ = prepare(task, choose(task))
    with regard.observe(model) as seen, torch.no_grad():
        model(batch)
    return seen


def test_bits_have_no_most_likely_class(machine):
    for ask in (machine.lens, machine.attributions, lambda: machine.faithfulness(measure="probability")):
        with pytest.raises(RegardError, match="numbers or bits on their own"):
            ask()
    with pytest.raises(RegardError, match="numbers or bits"):
        machine.attributions(measure="probability", answer=2)
    bit = machine.attributions(answer=2)  # the logit of one bit is a number like any other
    assert bit.measured.startswith("logit of 2") and set(bit.scores) == {"integrated gradients", "gradient × input"}


def test_the_heads_of_one_step_are_one_layer(machine):
    assert [name.rpartition(".")[2] for name in machine.names()] == ["write", "read"]
    (layer,) = layers_of(machine)
    assert layer.sites == machine.names() and layer.path == machine.names()[0].rpartition(".")[0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"problem_type": "multi_label_classification"}, False),
        ({"problem_type": "regression", "num_labels": 2}, False),
        ({"num_labels": 1}, False),
    ],
)
def test_labels_of_their_own_and_scores_are_no_classes(options, expected):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 13}
    config = transformers.BertConfig(vocab_size=17, **sizes, **{"num_labels": 3, **options})
    model = transformers.BertForSequenceClassification(config).eval()
    assert answers_with_a_class(model) == expected
