"""Attention that a module writes out itself is seen: weights, heads, memory, bits, whatever way it is written."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.observation.capture.written.detection import writes_out
from regard.observation.coverage import PartialView
from tests.observation.objects import leave_out_older, newer_tensors

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 7, 5


class Written(nn.Module):
    """Attention written out; subclasses override a step. It keeps its own weights, for the tests to compare with."""

    def __init__(self, dropout=0.0):
        super().__init__()
        dim = HEADS * WIDTH
        self.num_heads = HEADS
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, rows):
        return rows.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    def scores(self, query, key):
        return query @ key.transpose(-1, -2) / math.sqrt(WIDTH)

    def normalize(self, scores):
        return F.softmax(scores, -1)

    def mix(self, weights, value):
        return weights @ value

    def join(self, mixed):
        return mixed.transpose(1, 2).flatten(-2)

    def forward(self, x, mask=None):
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        scores = self.scores(query, key)
        if mask is not None:
            scores = scores + mask
        self.own = self.normalize(scores)
        return self.out(self.join(self.mix(self.dropout(self.own), value)))


class HeadsInBatch(Written):
    def split(self, rows):
        return super().split(rows).flatten(0, 1)

    def scores(self, query, key):
        return torch.baddbmm(torch.ones(1, 1, LENGTH), query, key.mT, beta=0.5, alpha=0.3)

    def mix(self, weights, value):
        return torch.bmm(weights, value).unflatten(0, (BATCH, HEADS))


class InPlace(Written):
    def scores(self, query, key):
        found = query.matmul(key.mT)
        found *= 0.3
        found.masked_fill_(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
        return found


class Assigned(Written):
    def scores(self, query, key):
        found = query.new_empty(BATCH, HEADS, LENGTH, LENGTH)
        found[..., :3] = query @ key[:, :, :3].mT
        found[..., 3:] = query @ key[:, :, 3:].mT
        return found


class Talking(Written):
    """Heads mix behind the softmax: these are the weights that values are multiplied with."""

    def __init__(self):
        super().__init__()
        self.talk = nn.Linear(HEADS, HEADS)

    def normalize(self, scores):
        return self.talk(super().normalize(scores).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class WithSink(Written):
    """One more score that takes weight and has no value."""

    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.randn(HEADS))

    def normalize(self, scores):
        sink = self.sink.view(1, HEADS, 1, 1).expand(BATCH, HEADS, LENGTH, 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


class BiasFromTable(Written):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * LENGTH - 1, HEADS))
        place = torch.arange(LENGTH)
        self.register_buffer("index", place[:, None] - place[None] + LENGTH - 1)

    def scores(self, query, key):
        return super().scores(query, key) + self.table[self.index].permute(2, 0, 1)


KINDS = [Written, HeadsInBatch, InPlace, Assigned, Talking, WithSink, BiasFromTable]  # other orders: test_written_axes


def drawn():
    return torch.randn(BATCH, LENGTH, HEADS * WIDTH)


def expected(model):
    """The weights the model has made, as (b,h,q,k)."""
    own = model.own.detach()
    return own.unflatten(0, (BATCH, HEADS)) if isinstance(model, HeadsInBatch) else own


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_writing_attention_out_shows_the_weights_the_model_made(kind):
    model, x = kind().eval(), drawn()
    plain = model(x)
    with regard.observe(model) as seen:
        observed = model(x)
    assert torch.equal(observed, plain)
    (site,) = seen.sites.values()
    assert site.how == "exact" and site.shape() == (BATCH, HEADS, LENGTH, LENGTH)
    torch.testing.assert_close(site.weights(), expected(model), rtol=0, atol=1e-6)
    some = site.weights(rows=[5, 0, 5], heads=[2])
    torch.testing.assert_close(some, expected(model)[:, [2]][:, :, [5, 0, 5]], rtol=0, atol=1e-6)
    columns = site.columns_of([3, 1], heads=slice(1, 3))
    torch.testing.assert_close(columns, expected(model)[:, 1:, :, [3, 1]], rtol=0, atol=1e-6)
    received = expected(model).mean(2)
    torch.testing.assert_close(site.summary(top=2).received, received, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_head_is_a_head_whose_mixed_values_are_zero(kind):
    model, x = kind().eval(), drawn()
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
        mix, others = model.mix, (torch.arange(HEADS) != 1).view(1, HEADS, 1, 1)
        model.mix = lambda weights, value: mix(weights, value) * others
        wanted = model(x).sum().item()
        del model.mix
    found = seen.ablate({seen.names()[0]: [1]}, loss=lambda output: output.sum())
    assert found.after == pytest.approx(wanted, abs=1e-4)


def test_weights_are_those_before_dropout_and_the_random_numbers_are_the_same():
    model, x = Written(dropout=0.5).train(), drawn()
    torch.manual_seed(3)
    plain = model(x)
    torch.manual_seed(3)
    with regard.observe(model) as seen:
        observed = model(x)
    assert torch.equal(observed, plain)
    (site,) = seen.sites.values()
    assert site.how == "exact"
    torch.testing.assert_close(site.weights(), model.own.detach(), rtol=0, atol=1e-6)
    assert torch.allclose(site.weights().sum(-1), torch.ones(()))


def maps_made():
    """Tensors as large as a map of all heads, of those made since `leave_out_older`."""
    size = BATCH * HEADS * LENGTH * LENGTH
    return [tensor for tensor in newer_tensors() if tensor.numel() == size]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Written, HeadsInBatch, InPlace, BiasFromTable])
def test_no_map_is_kept(kind):
    leave_out_older()
    model, x = kind().eval(), drawn()
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
        assert len(maps_made()) == 1, "the model's own"
        del model.own
    reading = seen[seen.names()[0]].reading()
    kept = [leaf.tensor for leaf in reading.replay.leaves]
    owned = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    sizes = [tensor.shape for tensor in kept if id(tensor) not in owned and tensor.dim() > 2]
    assert sizes and all(shape[-2:] != (LENGTH, LENGTH) for shape in sizes)
    assert not maps_made()


def test_chosen_rows_are_computed_without_the_others():
    model, x = Written().eval(), drawn()
    with torch.no_grad(), regard.observe(model) as seen:
        model(x, torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -1e9))
    reading = seen[seen.names()[0]].reading()
    assert reading.replay.by_rows
    assert reading.replay.run([2, 4]).shape == (BATCH, HEADS, 2, LENGTH)
    torch.testing.assert_close(reading.weights([2, 4]), model.own[:, :, [2, 4]], rtol=0, atol=1e-6)


def test_a_tensor_written_to_after_the_call_is_refused():
    model, x = Written().eval(), drawn()
    keys = []
    model.key.register_forward_hook(lambda module, given, result: keys.append(result))
    with torch.no_grad(), regard.observe(model) as seen:
        model(x)
    keys[0].add_(1)
    with pytest.raises(regard.RegardError, match="changed in place"):
        seen[seen.names()[0]].weights()


def test_gradient_times_attention_of_a_module_that_writes_it_out():
    model, x = Written().eval(), drawn()
    with regard.observe(model, gradients=True) as seen:
        number = model(x)[0, 4].sum()
    slope = torch.autograd.grad(number, model.own, retain_graph=True)[0]
    seen.gradient(number)
    found = seen[seen.names()[0]].times_gradient()
    torch.testing.assert_close(found, model.own.detach() * slope, rtol=0, atol=1e-6)


def test_in_inference_mode_and_in_half_precision():
    model, x = Written().eval().bfloat16(), drawn().bfloat16()
    with torch.inference_mode(), regard.observe(model) as seen:
        model(x)
        site = seen[seen.names()[0]]
        assert site.weights().dtype == torch.bfloat16 and site.how == "exact"
        assert torch.equal(site.weights(), model.own)


def test_a_softmax_over_scores_that_are_drawn_anew_is_not_called_exact():
    class Noisy(Written):
        def scores(self, query, key):
            found = super().scores(query, key)
            return found + torch.empty_like(found).exponential_().log()

    model = Noisy().eval()
    with torch.no_grad(), regard.observe(model) as seen:
        model(drawn())
    site = seen[seen.names()[0]]
    with pytest.raises(regard.RegardError):
        site.weights()


def test_experts_chosen_by_a_softmax_are_no_attention():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(11, 4)
            self.expert = nn.Parameter(torch.randn(4, 11, 11))

        def forward(self, x):
            share = self.router(x).softmax(-1)
            return torch.einsum("bne,bned->bnd", share, torch.einsum("bnd,edf->bnef", x, self.expert))

    model = Experts()
    assert writes_out(model)
    with pytest.warns(PartialView, match="nothing was seen"), regard.observe(model) as seen:
        model(torch.randn(2, 7, 11))
    assert not seen.names()


sdpa = F.scaled_dot_product_attention
TABLE = {"fused": sdpa}


class FromTable(nn.Module):
    def forward(self, x):
        return TABLE["fused"](x, x, x)


class FromPartial(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = functools.partial(sdpa, is_causal=True)

    def forward(self, x):
        return self.attend(x, x, x)


class FromDefault(nn.Module):
    def forward(self, x, attend=sdpa):
        return attend(x, x, x)


class FromOperator(nn.Module):
    def forward(self, x):
        return torch.ops.aten.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("kind", [FromTable, FromPartial, FromDefault, FromOperator])
def test_torchs_attention_is_seen_however_a_module_holds_it(kind):
    model, x = kind(), torch.randn(BATCH, HEADS, LENGTH, WIDTH)
    plain = model(x)
    with regard.observe(model) as seen:
        assert torch.equal(model(x), plain)
    torch.testing.assert_close(seen[kind.__name__].weights() @ x, plain, rtol=0, atol=1e-5)


def test_parts_with_paths_of_their_own_take_them():
    """Torch's encoder layer has a fast path that a torch function mode would switch off."""

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(12, 2, 17, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.ask = nn.Parameter(torch.randn(1, 1, 12))

        def forward(self, x):
            x = self.encoder(x)
            return (self.ask.expand(len(x), -1, -1) @ x.mT).softmax(-1) @ x

    model, x = Pooled().eval(), torch.randn(BATCH, LENGTH, 12)
    with torch.no_grad():
        plain = model(x)
        with regard.observe(model) as seen:
            assert torch.equal(model(x), plain)
    kinds = [seen[name].kind for name in seen.names()]
    assert kinds == ["_transformer_encoder_layer_fwd"] * 2 + ["softmax"]


def test_modules_with_nothing_written_out_run_under_no_mode():
    class Asks(nn.Module):
        def forward(self, x):
            self.modes = len(torch.overrides._get_current_function_mode_stack())
            return F.scaled_dot_product_attention(x, x, x)

    model = Asks()
    with regard.observe(model):
        model(drawn())
    assert model.modes == 0
