"""The loss of every task in a float64 run is computed in float64: nothing is rounded to float32 after the model."""

import pytest
import torch
from torch.utils._pytree import tree_map_only

from regard_workbench import models, tasks
from regard_workbench.models.parts.model import options_of

NAMES = [name for name in tasks.names() if not tasks.TASKS[name].acts]


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_tells_outputs_apart_that_float32_does_not(name):
    task = tasks.build(name)
    recipe = tasks.TASKS[name].recipe
    problem = models.problem_for(recipe.model, task.problems())
    task.pose(problem)
    known = options_of(models.MODELS[recipe.model.partition("(")[0]])
    torch.manual_seed(0)
    model = models.build(recipe.model, problem, **({"dim": 16} if "dim" in known else {})).double().eval()
    examples = task.examples("train")
    batch = task.collate([examples[n] for n in range(3)], torch.Generator().manual_seed(0)).cast(torch.float64)
    # The hinge losses of both players on a made picture add up to 1; the scores of real ones are outputs in training.
    trains = name == "generate"
    model.train(trains)
    with torch.set_grad_enabled(trains):
        outputs = model(batch)
        coarse = tree_map_only(torch.Tensor, lambda tensor: tensor.float().double(), outputs)
        losses = [model.loss(each, batch)[0] for each in (outputs, coarse)]
    assert losses[0].dtype == torch.float64
    assert losses[0].isfinite() and losses[0] != losses[1]
