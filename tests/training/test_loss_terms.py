"""Loss terms in a training step: hard attention by reinforcement, against the exact gradient and across splits."""

import itertools
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import BadValue
from regard.nn.hard import Hard
from regard.nn.parts import loss_terms
from regard_workbench.models import Model
from regard_workbench.tasks import Batch, Head, OneOf, Vectors
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.training import Config, hardware
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.run_folder.folder import RunFolder

DIM, CLASSES, KEYS = 5, 3, 3
WEIGHT = 0.3  # of the entropy


class Chooser(Model):
    """One hard attention from learned queries to the rows of an example, and a class for each query."""

    def __init__(self, queries=2, **options):
        super().__init__(Problem.of(Vectors(DIM), OneOf(CLASSES)))
        self.queries = nn.Parameter(torch.randn(queries, DIM))
        self.layer = regard.nn.build("hard", dim=DIM, estimator="reinforce", entropy_weight=WEIGHT, **options)
        self.head = Head(CLASSES, DIM)

    def forward(self, batch):
        rows = self.layer(self.queries.expand(batch.size, -1, -1), batch.inputs)
        return self.head(rows + batch.inputs.mean(1, keepdim=True), batch)


def made(head=None):
    torch.manual_seed(7)
    model = Chooser().double()
    if head is not None:
        model.head.__class__ = head
    device = hardware.prepare(complete(Config(task="digits", device="cpu")))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, CapturableStep(device, model, optimizer)


def batch_of(size, seed=0):
    """Examples with one or two targets that count."""
    own = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, KEYS, DIM, generator=own, dtype=torch.float64)
    targets = torch.randint(0, CLASSES, (size, 2), generator=own)
    keep = torch.tensor([[True, number % 2 == 1] for number in range(size)])
    return Batch.of(inputs, None, targets, keep)


def force(model, choose):
    """Make the layer choose `choose(inputs)` (b,h,q) in place of a sample."""
    layer = model.layer
    layer._chosen = types.MethodType(lambda self, inputs: Hard._chosen(self, inputs, choose(inputs)), layer)


def probabilities(model, batch):
    """The softmax over keys for each query, (b,q,k), from the formula."""
    layer = model.layer
    queries, keys = layer.query_map(model.queries), layer.key_map(batch.inputs)
    return torch.einsum("qd,bkd->bqk", queries, keys).div(DIM**0.5).softmax(-1)


def exact_objective(model, batch):
    """The expected mean loss over all choices, less the entropy bonus, from the formula."""
    p = probabilities(model, batch)
    values = model.layer.output_map(model.layer.value_map(batch.inputs))  # (b,k,dim)
    logits = model.head.logits(values + batch.inputs.mean(1, keepdim=True))  # (b,k,classes): if a query chose key k
    losses = torch.stack([-logits.log_softmax(-1)[b, :, batch.targets[b]] for b in range(batch.size)])  # (b,k,q)
    counts = batch.target_keep.sum(1)
    expected = (torch.einsum("bqk,bkq->bq", p, losses) * batch.target_keep).sum()
    entropy = -(p * p.log()).sum(-1).mean(1)
    return (expected - WEIGHT * (counts * entropy).sum()) / counts.sum()


class WholeBatch(Head):
    """A head with a loss of its own, which says nothing about single examples."""

    def loss(self, outputs, batch, smoothing=0.0):
        return super().loss(outputs, batch, smoothing)


@pytest.mark.parametrize(("head", "within"), [(None, 2e-6), (WholeBatch, 2e-6)], ids=["examples", "batch"])
def test_the_expected_gradient_of_a_step_is_the_exact_gradient_by_enumeration(head, within):
    """Over all 3⁴ choices of two examples with two queries each, with a baseline that is not zero."""
    model, step = made(head)
    batch = batch_of(2)
    model.layer.reinforce.baseline.average.fill_(-0.8)
    parameters = dict(model.named_parameters())
    if head is not None:  # the entropy of a batch as a whole is a mean over examples, here of equal weight
        batch = Batch.of(batch.inputs, None, batch.targets, torch.ones(2, 2, dtype=torch.bool))
    exact = torch.autograd.grad(exact_objective(model, batch), list(parameters.values()))
    p = probabilities(model, batch).detach()
    found = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    largest = 0.0
    for chosen in itertools.product(range(KEYS), repeat=4):
        index = torch.tensor(chosen).view(2, 1, 2)
        force(model, lambda inputs, index=index: index)
        chance = float(p.gather(-1, index.transpose(1, 2)).prod())
        model.layer.reinforce.baseline.average.fill_(-0.8)
        model.zero_grad()
        step.backward(batch)
        for name, parameter in parameters.items():
            found[name] += chance * parameter.grad
        largest = max(largest, float(model.layer.query_map.weight.grad.abs().max()))
    for name, want in zip(parameters, exact, strict=True):
        torch.testing.assert_close(found[name], want, rtol=0, atol=within)
    size = float(exact[list(parameters).index("layer.query_map.weight")].abs().max())
    assert size > 1e-3 and largest > 3 * size, "single samples are far from their mean, so the test can tell"


def by_content(inputs):
    """A choice that depends on the rows alone, so that it is the same however a batch is split."""
    return ((inputs.value.sum((1, 2, 3)) * 1e4).long().abs() % KEYS)[:, None, None].expand(-1, 1, 2).clone()


def test_accumulated_batches_equal_one_large_batch_with_terms_and_baseline():
    one, whole = made()
    apart, parts = made()
    for model in (one, apart):
        force(model, by_content)
        model.layer.reinforce.baseline.average.fill_(-0.4)
    batch = batch_of(7)
    want = whole([batch])
    assert batch.targets is not None and batch.target_keep is not None
    pieces = zip(*(one.split([1, 4, 2]) for one in (batch.inputs, batch.targets, batch.target_keep)), strict=True)
    found = parts([Batch.of(inputs, None, targets, keep) for inputs, targets, keep in pieces])
    assert found.loss == pytest.approx(want.loss, rel=1e-6) and found.norm == pytest.approx(want.norm, rel=1e-6)
    for (name, mine), theirs in zip(one.state_dict().items(), apart.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6, msg=name)
    average = float(one.layer.reinforce.baseline.average)
    assert average == pytest.approx(0.9 * -0.4 - 0.1 * want.loss, rel=1e-6), "the baseline moves once a step"


def test_the_reported_loss_is_that_of_the_task():
    model, step = made()
    force(model, by_content)
    batch = batch_of(4)
    with torch.no_grad():
        each = F.cross_entropy(model(batch).flatten(0, 1), batch.targets.flatten(), reduction="none")
    want = each[batch.target_keep.flatten()].mean()
    assert step([batch]).loss == pytest.approx(float(want), rel=1e-6)


def test_scores_learn_only_from_terms_and_nothing_is_kept_outside_of_a_step():
    model, _ = made()
    model.head.loss(model(batch_of(4)), batch_of(4))[0].backward()
    assert model.layer.query_map.weight.grad is None or not model.layer.query_map.weight.grad.any()
    assert model.layer.value_map.weight.grad.any()
    with loss_terms.collecting() as outer:
        with loss_terms.collecting() as inner:
            model(batch_of(4))
        assert len(inner) == 1 and not outer
        model.eval()(batch_of(4))
        assert not outer, "in evaluation nothing is sampled"


@pytest.mark.slow
def test_a_step_with_terms_is_traced_as_one_graph():
    model, step = made()
    force(model, by_content)
    plain = step._losses(batch_of(4), None)
    traced = torch.compile(step._losses, backend="eager", fullgraph=True)(batch_of(4), None)
    torch.testing.assert_close(traced, plain)


def test_the_task_learns_where_to_look():
    """One of three keys tells the class, marked by its first number; guessing gives a loss of log 3 = 1.1."""
    torch.manual_seed(3)
    model = Chooser(queries=1, num_heads=1).float()
    device = hardware.prepare(complete(Config(task="digits", device="cpu")))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = CapturableStep(device, model, optimizer)
    model.layer.reinforce.entropy_weight = 0.01
    own = torch.Generator().manual_seed(5)
    for _ in range(300):
        classes = torch.randint(0, CLASSES, (64, KEYS), generator=own)
        marked = torch.randint(0, KEYS, (64,), generator=own)
        mark = F.one_hot(marked, KEYS)[..., None].float() * 2
        rows = torch.cat([mark, F.one_hot(classes, CLASSES).float() * 2, torch.zeros(64, KEYS, 1)], -1)
        batch = Batch.of(rows, None, classes.gather(1, marked[:, None]))
        step([batch])
    model.eval()
    p = probabilities(model, batch).detach()[:, 0].gather(1, marked[:, None])
    assert float(p.mean()) > 0.8, "guessing is 0.33"


@pytest.mark.slow
def test_wrong_options_are_named():
    with pytest.raises(BadValue, match=r"estimator.*reinforce"):
        regard.nn.build("hard", dim=DIM, estimator="reinforced")
    with pytest.raises(BadValue, match="decay"):
        regard.nn.build("hard", dim=DIM, estimator="reinforce", baseline_decay=1.5)
    assert "reinforce.baseline.average" not in regard.nn.build("hard", dim=DIM).state_dict()


def test_regard_train_trains_by_reinforcement_and_resumes_with_the_baseline(tmp_path):
    given = {
        "model": "encoder(dim=8, layers=1, num_heads=2)",
        "attention": "hard(estimator=reinforce, entropy_weight=0.02)",
        "batch_size": 4,
        "device": "cpu",
        "accumulate": 2,
    }
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    regard.train("digits", **given, steps=6, out=straight)
    regard.train("digits", **given, steps=3, out=cut)
    regard.train("digits", **given, steps=6, out=cut, resume="auto")
    from safetensors.torch import load_file

    found = [load_file(sorted(RunFolder(run).checkpoints.glob("*/model.safetensors"))[-1]) for run in (straight, cut)]
    names = [name for name in found[0] if name.endswith("reinforce.baseline.average")]
    assert len(names) == 1 and float(found[0][names[0]]) < -0.1
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
