"""Guided attention: the loss term by hand, where it is offered, and that it teaches links."""

import pytest
import torch

from regard.nn.parts import loss_terms
from regard_workbench import models
from regard_workbench.models.parts.crossing import LEAST
from regard_workbench.tasks import Batch, Problem, Stream, Tokens, Writes

COUNT, SOURCES, TARGETS = 13, 5, 4


def built(model, guide, **options):
    torch.manual_seed(1)
    answer = Writes(COUNT, 7, 1, 2, guide=guide)
    return models.build(model, Problem.of(Tokens(COUNT), answer), dim=8, dropout=0.0, **options)


def batch():
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(3, COUNT, (3, SOURCES), generator=generator)
    target = torch.randint(3, COUNT, (3, TARGETS), generator=generator)
    links = torch.rand(3, TARGETS, SOURCES, generator=generator) / SOURCES
    rows = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4])
    answers = {"targets": Stream(target), "guide": Stream(links, rows)}
    return Batch({"inputs": Stream(source)}, answers)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("seq2seq", {"feeding": "none"}),
        ("seq2seq", {"attention": "additive"}),
        ("transformer", {"layers": 2, "num_heads": 2}),
        ("transformer", {"layers": 1, "num_heads": 2, "cross": "multihead(sink=true)"}),
    ],
)
def test_the_term_is_the_cross_entropy_of_the_mean_weights_and_the_sink(model, options):
    made, given = built(model, 0.7, **options), batch()
    maps = [found.mean(1) for found in made.eval().attention_to_source(given).values()]
    weights = torch.stack(maps).mean(0)
    links, rows = given.answers["guide"].data, given.answers["guide"].keep
    expected = 0.0
    for example in range(3):
        for row in range(TARGETS):
            if rows[example, row]:
                sink = max(1 - float(weights[example, row].sum()), LEAST)
                expected -= 0.7 * float((links[example, row] * weights[example, row].log()).sum())
                expected -= 0.7 * (1 - float(links[example, row].sum())) * torch.tensor(sink).log().item()
    made.train()
    with loss_terms.collecting() as offered:
        made(given)
    (term,) = offered
    total = term(torch.zeros(3), torch.ones(3))
    assert total.item() == pytest.approx(expected, rel=1e-4)
    total.backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in made.parameters())


def test_nothing_is_offered_without_links_in_evaluation_or_without_the_option():
    for made, given in (
        (built("seq2seq", 0.5).eval(), batch()),
        (built("seq2seq", 0.5).train(), Batch(batch().streams, {"targets": batch().answers["targets"]})),
        (built("seq2seq", 0.0).train(), batch()),
    ):
        with loss_terms.collecting() as offered:
            made(given)
        assert offered == []


def test_no_hook_is_left_behind_after_a_pass_or_a_failed_one():
    made = built("transformer", 0.5, layers=1).train()
    with pytest.raises(Exception, match=r"."):
        made(Batch({"inputs": Stream(torch.full((1, 2), 99))}, batch().answers))
    made(batch())
    assert not any(module._forward_pre_hooks for name, module in made.named_modules() if name)


def test_attention_learns_the_links_it_is_guided_to():
    made, given = built("seq2seq", 1.0, feeding="none").train(), batch()
    links = torch.nn.functional.one_hot(torch.tensor([[3, 0, 4, 1]] * 3), SOURCES).float()
    given.answers["guide"] = Stream(links, torch.ones(3, TARGETS, dtype=torch.bool))
    rule = torch.optim.Adam(made.parameters(), 0.03)
    for _ in range(120):
        with loss_terms.collecting() as offered:
            outputs = made(given)
        total, _ = made.loss(outputs, given)
        rule.zero_grad()
        (total + offered[0](torch.zeros(3), torch.ones(3))).backward()
        rule.step()
    (weights,) = made.eval().attention_to_source(given).values()
    assert weights[:, 0].argmax(-1).tolist() == [[3, 0, 4, 1]] * 3
