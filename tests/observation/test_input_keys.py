"""Which keys of a site are the inputs: shown by replacing inputs, never by counting keys."""

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from regard.observation.causes.copies import model_call
from regard.observation.causes.input_keys import first_input_keys
from regard.observation.causes.input_rows import InputRows

WORDS, WIDTH, LENGTH = 17, 6, 11
attend = nn.functional.scaled_dot_product_attention


class Reader(nn.Module):
    """One attention over the inputs, over slots that are learned, or over both in some order."""

    def __init__(self, before=0, after=0, reads=True, causal=False, order=None):
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 5)
        self.before, self.after = (nn.Parameter(torch.randn(count, WIDTH)) for count in (before, after))
        self.reads, self.causal, self.order = reads, causal, order

    def forward(self, ids):
        rows = self.embedding(ids)
        batch = len(ids)
        inputs = rows if self.order is None else rows[:, self.order]
        keys = torch.cat(
            [self.before.expand(batch, -1, -1), *([inputs] if self.reads else []), self.after.expand(batch, -1, -1)], 1
        )[:, None]
        mixed = attend(2 * rows[:, None], keys, keys, is_causal=self.causal)
        return self.head(mixed[:, 0])


def observed(**options):
    torch.manual_seed(7)
    model = Reader(**options).double().eval()
    with regard.observe(model) as seen, torch.no_grad():
        model(torch.randint(0, WORDS, (1, LENGTH)))
    return seen


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 0),
        ({"causal": True}, 0),
        ({"before": 5}, 5),  # a prefix
        ({"after": 7}, 0),
        ({"before": 3, "after": 13}, 3),
        ({"before": LENGTH, "reads": False}, None),  # as many slots as inputs
        ({"before": 128, "reads": False}, None),
        ({"order": list(reversed(range(LENGTH)))}, None),  # key k is not input k
    ],
)
def test_the_first_input_is_found_among_slots_and_slots_alone_are_no_inputs(options, first):
    seen = observed(**options)
    entering = InputRows(seen.model, model_call("inputs", None, seen))
    found = first_input_keys(entering, LENGTH, None)
    assert found == ({} if first is None else {"Reader": first})


def test_an_attribution_by_attention_is_that_of_the_inputs_among_the_keys():
    seen = observed(before=5, after=3)
    found = seen.attributions(answer=2, position=4)
    weights = seen["Reader"].weights()[0, 0, 4].double()
    assert torch.allclose(found.scores["attention"], weights[5 : 5 + LENGTH], rtol=1e-12)
    judged = seen.faithfulness(answer=2, position=4, draws=9)
    assert [one.name for one in judged.maps] == ["Reader"]


@pytest.mark.parametrize("slots", [LENGTH, 128])
def test_weights_on_memory_slots_are_never_called_weights_on_inputs(slots):
    seen = observed(before=slots, reads=False)
    found = seen.attributions(answer=2)
    assert set(found.scores) == {"integrated gradients", "gradient × input"}
    assert f"Reader has {slots} keys" in " ".join(found.missing)
    with pytest.raises(RegardError, match=f"Reader has {slots} keys"):
        seen.faithfulness(answer=2, draws=5)
    with pytest.raises(RegardError, match=f"the {slots} keys of Reader are not the {LENGTH} inputs"):
        seen.faithfulness(answer=2, sites=["Reader"], draws=5)
    own = seen.faithfulness(answer=2, scores={"own": torch.arange(LENGTH)}, draws=5)
    assert [one.name for one in own.maps] == ["own"]
