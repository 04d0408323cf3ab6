"""Masks, scores, biases and normalisers are values: printed, compared, hashed, copied, pickled, moved."""

import copy
import pickle

import pytest
import torch

import regard
from regard import biases, masks, normalizers, scores

# (an expression, one that differs) without tensors inside
PLAIN = {
    "full": ("masks.full()", "masks.causal()"),
    "causal": ("masks.causal()", "masks.causal(align='top-left')"),
    "causal offset": ("masks.causal(offset=3)", "masks.causal(offset=4)"),
    "window": ("masks.window(3)", "masks.window(2)"),
    "window uneven": ("masks.window(3, 1)", "masks.window(1, 3)"),
    "window top-left": ("masks.window(3, 0, align='top-left')", "masks.window(3, 0)"),
    "window offset": ("masks.window(3, 0, offset=2)", "masks.window(3, 0, offset=1)"),
    "prefix": ("masks.prefix(5)", "masks.prefix(6)"),
    "blocks": ("masks.blocks(4)", "masks.blocks(5)"),
    "dilated": ("masks.dilated(3)", "masks.dilated(2)"),
    "global": ("masks.global_tokens([0, 5])", "masks.global_tokens([0, 6])"),
    "and": ("masks.causal() & masks.window(3)", "masks.causal() | masks.window(3)"),
    "or in and": (
        "masks.causal() & (masks.prefix(2) | masks.blocks(4))",
        "masks.causal() & masks.prefix(2) | masks.blocks(4)",
    ),
    "not": ("~(masks.causal() | masks.prefix(2))", "~masks.causal() | masks.prefix(2)"),
    "not leaf and": ("~masks.causal() & masks.window(4)", "~(masks.causal() & masks.window(4))"),
    "scaled_dot": ("scores.scaled_dot()", "scores.dot()"),
    "dot": ("scores.dot()", "scores.softcap(1.0)"),
    "softcap": ("scores.softcap(30.0)", "scores.softcap(20.0)"),
    "cosine": ("scores.cosine(2.0)", "scores.cosine(3.0)"),
    "alibi": ("biases.alibi(8)", "biases.alibi(4)"),
    "alibi twice": ("biases.alibi(8) + biases.alibi(8)", "biases.alibi(8)"),
    "softmax": ("normalizers.softmax()", "normalizers.sigmoid()"),
    "sigmoid": ("normalizers.sigmoid()", "normalizers.softmax()"),
    "sparsemax": ("normalizers.sparsemax()", "normalizers.entmax15()"),
    "entmax15": ("normalizers.entmax15()", "normalizers.sparsemax()"),
    "hard": ("normalizers.hard()", "normalizers.softmax()"),
}
NAMESPACE = {"regard": regard, "masks": masks, "scores": scores, "biases": biases, "normalizers": normalizers}

# builders from tensors: (names of tensors to draw with their shapes and kinds) -> value
TENSORS = {
    "lengths": (lambda t: masks.lengths(t), lambda: torch.tensor([3, 1])),
    "lengths of both": (lambda t: masks.lengths(t[0], t[1]), lambda: torch.tensor([[3, 1], [2, 2]])),
    "padding": (lambda t: masks.padding(t), lambda: torch.tensor([[True, False, True, True]])),
    "documents": (lambda t: masks.documents(t), lambda: torch.tensor([[0, 0, 1, -1]])),
    "packed": (lambda t: masks.packed(t), lambda: torch.tensor([0, 2, 4])),
    "prefix": (lambda t: masks.prefix(t), lambda: torch.tensor([0, 2])),
    "offsets": (lambda t: masks.causal(offset=t), lambda: torch.tensor([0, 2])),
    "dense": (lambda t: masks.dense(t), lambda: torch.ones(3, 4, dtype=torch.bool)),
    "nested": (lambda t: ~masks.causal() | masks.lengths(t) & masks.window(2), lambda: torch.tensor([3, 1])),
    "general": (lambda t: scores.general(t), lambda: torch.randn(4, 4)),
    "additive": (lambda t: scores.additive(t), lambda: torch.randn(4)),
    "concat": (lambda t: scores.concat(t, t + 1, t[:, 0]), lambda: torch.randn(6, 4)),
    "cosine": (lambda t: scores.cosine(t), lambda: torch.randn(3)),
    "shaw": (lambda t: scores.shaw(t), lambda: torch.randn(5, 4)),
    "transformer_xl": (lambda t: scores.transformer_xl(t[0], t[1], t), lambda: torch.randn(5, 4)),
    "relative": (lambda t: biases.relative(t), lambda: torch.randn(3, 5)),
    "t5": (lambda t: biases.t5(t), lambda: torch.randn(32, 3)),
    "gaussian": (lambda t: biases.gaussian(t, 2.0), lambda: torch.randn(2, 3, 4)),
    "bias dense": (lambda t: biases.dense(t), lambda: torch.randn(3, 4)),
    "bias sum": (lambda t: biases.dense(t) + biases.alibi(3), lambda: torch.randn(3, 4)),
}
OF_MASKS = ["lengths", "lengths of both", "padding", "documents", "packed", "prefix", "offsets", "dense", "nested"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_prints_as_the_expression_that_made_it(name):
    value = eval(PLAIN[name][0], NAMESPACE)
    again = eval(repr(value), NAMESPACE)
    assert again == value
    assert type(again) is type(value)
    assert hash(again) == hash(value)


@pytest.mark.parametrize("name", PLAIN)
def test_a_value_equals_only_what_has_its_contents(name):
    value, other = (eval(text, NAMESPACE) for text in PLAIN[name])
    assert value == eval(PLAIN[name][0], NAMESPACE)
    assert value != other
    assert value != PLAIN[name][0]
    assert value is not None
    assert len({value, other, eval(PLAIN[name][0], NAMESPACE)}) == 2


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_compare_by_contents_and_hash_by_shape(name):
    build, make = TENSORS[name]
    tensor = make()
    value, same = build(tensor), build(tensor.clone())
    assert value == same
    assert hash(value) == hash(same)
    different = ~tensor if tensor.dtype == torch.bool else tensor + 1
    assert value != build(different)
    assert hash(value) == hash(build(different)), "a hash uses structure, shapes and dtypes only"


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_another_shape_or_dtype_are_different_values(name):
    build, make = TENSORS[name]
    tensor = make()
    if tensor.is_floating_point():
        assert build(tensor) != build(tensor.double())
    elif name not in ("dense", "padding"):
        assert build(tensor) != build(torch.cat([tensor, tensor], -1).sort(-1).values)  # offsets must not fall


@pytest.mark.parametrize("name", [*PLAIN, *TENSORS])
@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy"])
def test_values_survive_pickle_and_copies(name, how):
    if name in PLAIN and name not in TENSORS:
        value = eval(PLAIN[name][0], NAMESPACE)
    else:
        build, make = TENSORS[name]
        value = build(make())
    again = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "copy": copy.copy, "deepcopy": copy.deepcopy}[how](
        value
    )
    assert again == value
    assert repr(again) == repr(value)
    assert hash(again) == hash(value)


@pytest.mark.parametrize("name", OF_MASKS)
def test_masks_copy_their_tensors(name):
    """A later change of an argument does not reach a mask that was built from it."""
    build, make = TENSORS[name]
    tensor = make()
    mask = build(tensor)
    q = 4 if name in ("documents", "packed") else 3
    before = mask.dense(q, 4, batch=2).clone()
    _ = tensor.logical_not_() if tensor.dtype == torch.bool else tensor.fill_(1)
    assert torch.equal(mask.dense(q, 4, batch=2), before)
    assert mask == build(make())


@pytest.mark.parametrize("name", [*TENSORS])
def test_values_move_between_devices(name, device):
    build, make = TENSORS[name]
    value = build(make())
    moved = value.to(device)
    assert repr(moved)
    assert moved.to("cpu") == value
    if name in OF_MASKS:
        q = 4 if name in ("documents", "packed") else 3
        assert moved.dense(q, 4, batch=2, device=device).device.type == device


@pytest.mark.parametrize("name", PLAIN)
def test_values_without_tensors_move_too(name, device):
    value = eval(PLAIN[name][0], NAMESPACE)
    if not name.startswith(("softmax", "sigmoid", "sparsemax", "entmax15", "hard")):
        assert value.to(device) == value


@pytest.mark.parametrize("name", TENSORS)
def test_a_value_with_tensors_prints_their_shape_not_their_contents(name):
    build, make = TENSORS[name]
    text = repr(build(make()))
    assert len(text) < 400
    assert "\n" not in text


@pytest.mark.parametrize("name", [*PLAIN])
def test_values_are_frozen(name):
    value = eval(PLAIN[name][0], NAMESPACE)
    with pytest.raises((AttributeError, TypeError)):
        value.something_new = 3
    for field in list(getattr(value, "__dataclass_fields__", {})):
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, field, None)


@pytest.mark.parametrize("name", ["general", "additive", "shaw", "relative", "t5", "gaussian", "bias dense", "cosine"])
def test_scores_and_biases_keep_the_gradient_of_their_tensors(name):
    """Masks copy; what is trained must not be cut off."""
    build, make = TENSORS[name]
    tensor = make().requires_grad_()
    value = build(tensor)
    query, key, v = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 5)
    if name == "bias dense":
        query = torch.randn(2, 3, 3, 4)
    kind = "score" if name in ("general", "additive", "shaw", "cosine") else "bias"
    (grad,) = torch.autograd.grad(regard.attend(query, key, v, **{kind: value}).square().sum(), tensor)
    assert grad.shape == tensor.shape
    assert (grad != 0).any()


def test_a_request_with_moved_values_runs_on_their_device(device):
    query, key, value = (torch.randn(2, 3, 4, 4, device=device) for _ in range(3))
    mask = masks.lengths(torch.tensor([3, 1])).to(device)
    score = scores.additive(torch.randn(4)).to(device)
    bias = (biases.relative(torch.randn(3, 5)) + biases.alibi(3)).to(device)
    assert regard.attend(query, key, value, mask=mask, score=score, bias=bias).device.type == device
