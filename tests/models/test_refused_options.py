"""Options that no network has: refused by every model in our words, before torch refuses them in its own."""

import pytest

from regard.errors import BadType, BadValue
from regard_workbench import models, tasks

TASKS = ("dates", "digits", "language", "copy", "graph", "respond")
POSED = [problem for task in TASKS for problem in tasks.build(task).problems()]
FIRST = {name: problem for name in models.names() for problem in POSED if models.fits(models.MODELS[name], problem)}
WRONG = {
    "dim": (0, -1),
    "dropout": (-1, 2.5, float("nan")),
    "hidden_dropout": (1.5,),
    "layers": (-1,),
    "num_heads": (0,),
    "channels": (0,),
}


@pytest.mark.parametrize("name", sorted(FIRST))
def test_a_size_or_probability_that_no_network_has_is_refused(name):
    """A ZeroDivisionError, or torch's own words, reached the user as a traceback."""
    for option, values in WRONG.items():
        for value in values:
            with pytest.raises((BadValue, BadType), match=rf"{option}|there is no"):
                models.build(name, FIRST[name], **{option: value})


def test_an_option_of_the_attention_is_sent_there():
    problem = tasks.build("dates").problem
    with pytest.raises(BadValue, match=r'value_dim: transformer .* --attention "multihead\(value_dim=24\)"'):
        models.build("transformer(dim=8, num_heads=2, value_dim=24)", problem)
    small = "transformer(dim=8, layers=1, num_heads=2)"
    built = models.build(small, problem, attention="multihead(value_dim=24)")
    assert built.encoder.layers[0].attention.value_dim == 24
