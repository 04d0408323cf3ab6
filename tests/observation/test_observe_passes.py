"""Forward passes are detected on class and instance, and only the model's own modules are sites."""

import threading
import types

import pytest
import torch
from torch import nn

import regard
from tests.observation import peers
from tests.observation.peers import BAR, largest


class Twice(nn.Module):
    """One layer that is applied twice: two sites of one forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        for _ in range(2):
            x = x + self.layer(x, x, x, need_weights=False)[0]
        return x


def on_the_class(model):
    pass


def on_the_instance(model):
    model.forward = types.MethodType(type(model).forward, model)


def as_a_closure(model):
    own = model.forward
    model.forward = lambda *args: own(*args)


def by_accelerate(model):
    from accelerate.hooks import ModelHook, add_hook_to_module

    for part in list(model.modules()):
        add_hook_to_module(part, ModelHook())


PLACES = [on_the_class, on_the_instance, as_a_closure, by_accelerate]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("direct", [False, True], ids=["called", "forward called"])
def test_a_pass_is_detected_wherever_forward_is_defined(place, direct):
    torch.manual_seed(3)
    model, x = Twice().eval(), torch.randn(2, 5, 12)
    place(model)
    held = dict(vars(model))
    with torch.no_grad():
        plain = model(x)
        with regard.observe(model) as seen:
            observed = model.forward(x) if direct else model(x)
            model(x)
    assert torch.equal(plain, observed)
    assert {name: seen[name].calls for name in seen.names()} == {"layer": 2, "layer#2": 2}
    assert seen.inputs[0][0] is x
    assert seen.rollout().shape[-1] == 5
    assert seen.ablate({"layer#2": [1]}, loss=lambda out: out.sum()).change != 0
    assert dict(vars(model)) == held  # nothing is left on the instance


@pytest.mark.filterwarnings("ignore")
def test_a_pass_through_a_compiled_forward_is_detected():
    model, x = Twice().eval(), torch.randn(2, 5, 12)
    model.forward = torch.compile(model.forward, backend="eager")
    with torch.no_grad(), regard.observe(model) as seen:
        observed = model(x)
    assert seen.inputs[0][0] is x
    torch.testing.assert_close(observed, Twice.forward(model, x))


def test_an_instance_that_wraps_written_out_attention_is_seen():
    with peers.stand_in_for_torchvision():
        from timm.models.vision_transformer import VisionTransformer
    sizes = {"img_size": 20, "patch_size": 5, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 7}
    model, given = VisionTransformer(**sizes).eval(), torch.randn(2, 3, 20, 20)
    for part in model.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
    with torch.no_grad(), regard.observe(model) as before:
        plain = model(given)
    by_accelerate(model)
    with torch.no_grad(), regard.observe(model) as seen:
        observed = model(given)
    assert torch.equal(plain, observed)
    assert seen.names() == before.names() != []
    for name in seen.names():
        assert largest(seen[name].weights(), before[name].weights()) <= BAR


class Student(nn.Module):
    """Has a teacher that is no part of it."""

    def __init__(self, teacher, direct=False):
        super().__init__()
        self.layer = nn.MultiheadAttention(12, 3, batch_first=True)
        self.elsewhere, self.direct = [teacher], direct

    def forward(self, x):
        teacher = self.elsewhere[0].forward if self.direct else self.elsewhere[0]
        teacher(x, x, x, need_weights=False)
        return self.layer(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("training", [False, True], ids=["fast path", "training"])
def test_a_teacher_is_not_a_site_of_its_student(direct, training):
    teacher = nn.MultiheadAttention(12, 2, batch_first=True).train(training)
    model, x = Student(teacher, direct).train(training), torch.randn(1, 5, 12)
    with torch.no_grad(), regard.observe(model) as seen, regard.observe(teacher) as other:
        model(x)
    assert seen.names() == ["layer"] and seen["layer"].shape() == (1, 3, 5, 5)
    assert [other[name].shape() for name in other.names()] == [(1, 2, 5, 5)]


def test_a_layer_that_is_added_inside_the_block_is_a_part():
    class Growing(nn.Module):
        def forward(self, x):
            if not hasattr(self, "late"):
                self.late = nn.MultiheadAttention(12, 2, batch_first=True)
            return self.late(x, x, x)[0]

    model = Growing()
    with regard.observe(model) as seen:
        model(torch.randn(1, 5, 12))
    assert seen.names() == ["late"]


def test_an_assistant_that_drafts_tokens_is_not_a_site():
    model, assistant = peers.small("llama"), peers.small("mistral")
    ids = peers.inputs("llama")["input_ids"][:1]
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), regard.observe(model) as seen:
        model.generate(ids, assistant_model=assistant, **options)
    assert len(seen) == model.config.num_hidden_layers
    assert all("self_attn" in name for name in seen)


class Meeting(nn.Module):
    """Two attentions; between them it waits for the forward pass of another thread."""

    def __init__(self, written, threads):
        super().__init__()
        self.layers = nn.ModuleList([Layer(written) for _ in range(2)])
        self.barrier = threading.Barrier(threads, timeout=60)

    def forward(self, x):
        for layer in self.layers:
            self.barrier.wait()
            x = layer(layer(x))
        return x


class Layer(nn.Module):
    def __init__(self, written):
        super().__init__()
        self.written, self.map = written, nn.Linear(5, 5)

    def forward(self, x):
        rows = self.map(x)
        if self.written:
            return (rows @ x.mT).softmax(-1) @ x
        return nn.functional.scaled_dot_product_attention(rows, x, x)


@pytest.mark.parametrize("written", [False, True])
def test_threads_that_run_one_model_make_calls_of_their_own(written):
    model, inputs = Meeting(written, 2), torch.randn(2, 3, 7, 5).unbind()
    outputs = {}

    def run(at):
        with torch.no_grad():
            outputs[at] = [model(inputs[at]) for _ in range(3)]

    with regard.observe(model) as seen:
        threads = [threading.Thread(target=run, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    model.barrier = threading.Barrier(1)
    assert sorted(seen.names()) == ["layers.0", "layers.0#2", "layers.1", "layers.1#2"]
    expected = []
    for at in range(2):
        with torch.no_grad(), regard.observe(model) as alone:
            plain = model(inputs[at])
        assert all(torch.equal(output, plain) for output in outputs[at])
        expected.append({name: alone[name].weights() for name in alone})
    for name in seen:
        shown = [seen[name].weights(call=call) for call in range(seen[name].calls)]
        for at in range(2):
            assert sum(torch.equal(weights, expected[at][name]) for weights in shown) == 3


def test_steps_of_two_threads_stay_apart():
    """Each thread decodes over keys of its own, step by step in one forward pass."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.barrier = Attends(), threading.Barrier(2, timeout=60)

        def forward(self, rows, source):
            for row in rows.split(1, 2):
                self.barrier.wait()
                self.layer(row, source)

    class Attends(nn.Module):
        def forward(self, row, source):
            return nn.functional.scaled_dot_product_attention(row, source, source)

    model, rows, sources = Steps(), torch.randn(2, 1, 2, 4, 3), torch.randn(2, 1, 2, 7, 3)
    with regard.observe(model) as seen:
        threads = [threading.Thread(target=model, args=given) for given in zip(rows, sources, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    site = seen["layer"]
    assert seen.names() == ["layer"] and site.calls == 8
    assert len({id(reading.key) for reading in site.readings}) == 2  # the steps of a thread share their keys
    shown = torch.stack([site.weights(call=call)[0, :, 0] for call in range(8)])
    wanted = torch.cat(
        [torch.softmax(q @ k.mT / 3**0.5, -1)[0].transpose(0, 1) for q, k in zip(rows, sources, strict=True)]
    )
    apart = (shown[:, None] - wanted[None]).abs().amax((2, 3))
    assert (apart.amin(0) < 1e-6).all() and (apart.amin(1) < 1e-6).all()
