"""Every model × every kind of problem it serves, and what each family promises beyond that."""

import copy
import io

import pytest
import torch

import regard
from regard_workbench import models
from regard_workbench.models import MODELS
from regard_workbench.tasks import Batch, Bits, HiddenTokens, NextToken, OneOf, Problem, Tokens, Vectors, Writes
from regard_workbench.tasks.answers import shifted

WORDS, OUT, N, T, B = 23, 19, 11, 7, 3

PROBLEMS = {
    "classify": Problem.of(Tokens(WORDS, length=N), OneOf(5)),
    "language": Problem.of(Tokens(WORDS, length=4 * N), NextToken(WORDS)),
    "masked": Problem.of(Tokens(WORDS, length=N), HiddenTokens(WORDS, blank=1)),
    "translate": Problem.of(Tokens(WORDS, length=N), Writes(OUT, T, start=1, end=2)),
    "bits": Problem.of(Vectors(6, length=N), Bits(4)),
}
SERVED = [(name, kind) for name in models.names() for kind in PROBLEMS if models.fits(MODELS[name], PROBLEMS[kind])]


def small(name, kind, **options):
    sizes = {"slots": 7, "width": 5, "hidden": 13} if name == "ntm" else {"dim": 16, "layers": 2}
    return models.build(name, PROBLEMS[kind], **{**sizes, **options})


def batch(kind, lengths=(N, 6, 1)):
    generator = torch.Generator().manual_seed(3)
    problem = PROBLEMS[kind]
    size, longest = len(lengths), max(lengths)
    if isinstance(problem.inputs, Vectors):
        inputs = torch.randint(0, 2, (size, longest, problem.inputs.width), generator=generator).float()
    else:
        inputs = torch.randint(3, WORDS, (size, longest), generator=generator)
    keep = torch.arange(longest) < torch.tensor(lengths)[:, None]
    shape = {"classify": (size,), "translate": (size, T), "bits": (size, longest, problem.answer.outputs)}.get(
        kind, (size, longest)
    )
    targets = torch.randint(0, 2 if kind == "bits" else problem.answer.outputs, shape, generator=generator)
    return Batch.of(inputs, None if all(n == longest for n in lengths) else keep, targets)


def shape_of(kind, given):
    problem = PROBLEMS[kind]
    size, length = given.inputs.shape[:2]
    return {"classify": (size, problem.answer.outputs), "translate": (size, T, problem.answer.outputs)}.get(
        kind, (size, length, problem.answer.outputs)
    )


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_logits_have_the_shape_of_the_problem_and_reach_every_weight(name, kind):
    model = small(name, kind)
    given = batch(kind, (N, N, N))
    logits = model(given)
    assert logits.shape == shape_of(kind, given)
    logits.square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not silent


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_a_padded_batch_equals_its_examples(name, kind):
    model = small(name, kind).double().eval()
    given = batch(kind)
    together = model(given)
    for row, length in enumerate((N, 6, 1)):
        single = Batch.of(given.inputs[row : row + 1, :length], None, given.targets[row : row + 1])
        if kind == "bits":
            single = Batch.of(single.inputs, None, given.targets[row : row + 1, :length])
        alone = model(single)[0]
        expected = together[row] if kind in ("classify", "translate") else together[row, :length]
        assert torch.allclose(alone, expected, atol=1e-9), (row, length)


def test_transformer_xl_refuses_padding_before_a_token():
    given = batch("language")
    with pytest.raises(regard.RegardError, match="padding before a token"):
        small("transformer-xl", "language")(Batch.of(given.inputs.flip(1), given.keep.flip(1), given.targets))


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, k in SERVED if k in ("language", "bits")])
def test_models_that_write_never_see_the_future(name, kind):
    model = small(name, kind).double().eval()
    given = batch(kind, (N, N, N))
    changed = given.inputs.clone()
    changed[:, 7:] = 1 - changed[:, 7:] if kind == "bits" else 3
    assert torch.allclose(model(Batch.of(changed))[:, :7], model(given)[:, :7], atol=1e-12)


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "translate"])
def test_the_target_is_read_one_behind(name):
    model = small(name, "translate").double().eval()
    given = batch("translate", (N, N, N))
    later = given.targets.clone()
    later[:, 4:] = 3
    changed = model(Batch.of(given.inputs, None, later))
    assert torch.allclose(changed[:, :5], model(given)[:, :5], atol=1e-12)
    assert not torch.allclose(changed[:, 5:], model(given)[:, 5:], atol=1e-6)


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "language"])
@pytest.mark.parametrize("method", ["greedy", "beam", "sample"])
def test_continuations_with_a_cache_are_those_without(name, method):
    model = small(name, "language").eval()
    prompts = Batch.of(batch("language", (5, 5, 5)).inputs)
    options = {"method": method, "max_length": 12} | ({"beam": 3, "n_best": 2} if method == "beam" else {})
    found = []
    for cached in (True, False):
        torch.manual_seed(2)
        found.append(model.generate(prompts, cached=cached, **options))
    for mine, other in zip(*found, strict=True):
        assert [h.tokens for h in mine] == [h.tokens for h in other]
        assert [h.score for h in mine] == pytest.approx([h.score for h in other], abs=1e-5)


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "language"])
def test_prompts_of_different_lengths_are_continued_as_if_alone(name):
    model = small(name, "language").eval()
    given = batch("language", (5, 3, 4))
    together = model.generate(Batch.of(given.inputs, given.keep), max_length=6)
    for row, length in enumerate((5, 3, 4)):
        assert model.generate(Batch.of(given.inputs[row : row + 1, :length]), max_length=6)[0] == together[row]


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "language"])
def test_padding_of_prompts_is_left_out_wherever_it_stands(name):
    model = small(name, "language").eval()
    tokens = batch("language", (6, 6, 6)).inputs
    keep = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 0, 0]]).bool()
    for real in (keep, keep.roll(1, 0)[:2], torch.cat([keep[:2], ~keep[:1]])):  # the last: of unequal lengths
        found = model.generate(Batch.of(tokens[: len(real)], real), max_length=4)
        for row in range(len(real)):
            alone = model.generate(Batch.of(tokens[row : row + 1, real[row]]), max_length=4)[0]
            assert [h.tokens for h in found[row]] == [h.tokens for h in alone]


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "language"])
def test_a_prompt_without_a_token_is_refused_and_no_prompts_are_none(name):
    model, tokens = small(name, "language").eval(), batch("language", (4, 4, 4)).inputs
    with pytest.raises(regard.RegardError, match="row 0 of the inputs holds no token"):
        model.generate(Batch.of(tokens[:, :0]))
    keep = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    with pytest.raises(regard.RegardError, match="row 1 of the inputs holds no token"):
        model.generate(Batch.of(tokens, keep))
    assert model.generate(Batch.of(tokens[:0]), max_length=3) == []
    assert [h[0].tokens for h in model.generate(Batch.of(tokens), max_length=0)] == [[], [], []]


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "translate"])
def test_sources_without_a_token_are_written_for_as_if_all_were_padding(name):
    model, given = small(name, "translate").eval(), batch("translate")
    nothing = Batch.of(given.inputs, torch.zeros_like(given.inputs, dtype=torch.bool))
    expected = model.generate(nothing, max_length=3)
    found = model.generate(Batch.of(given.inputs[:, :0]), max_length=3)
    assert [h[0].tokens for h in found] == [h[0].tokens for h in expected]
    assert model.generate(Batch.of(given.inputs[:0]), max_length=3) == []


@pytest.mark.parametrize("name", [n for n, k in SERVED if k == "translate"])
@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_translations_are_the_likeliest_under_the_model(name, method):
    """The score of what is written is that of a forward pass over it; padding does not matter."""
    model = small(name, "translate").eval()
    given = batch("translate")
    found = model.generate(given, method=method, beam=4, max_length=T)
    for row, length in enumerate((N, 6, 1)):
        best = found[row][0]
        targets = torch.tensor([best.tokens])
        logits = model(Batch.of(given.inputs[row : row + 1, :length], None, targets))
        total = logits.log_softmax(-1).gather(-1, targets[..., None]).sum().item()
        assert best.score == pytest.approx(total / len(best.tokens), abs=1e-4)
        if method == "greedy":
            assert logits[0].argmax(-1).tolist() == best.tokens


def test_the_transformer_without_a_cache_writes_the_same():
    model = small("transformer", "translate").eval()
    given = batch("translate")
    for method in ("greedy", "beam"):
        cached, plain = (model.generate(given, cached=c, method=method, max_length=T) for c in (True, False))
        assert [h[0].tokens for h in cached] == [h[0].tokens for h in plain]


@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_models_can_be_copied_and_their_weights_kept(name, kind):
    model, given = small(name, kind).eval(), batch(kind, (N, N, N))
    expected = model(given)
    assert torch.equal(copy.deepcopy(model)(given), expected)
    twin = small(name, kind).eval()
    held = io.BytesIO()
    torch.save(model.state_dict(), held)
    held.seek(0)
    twin.load_state_dict(torch.load(held, weights_only=True))
    assert torch.equal(twin(given), expected)


ATTENTIONS = ["local(window=3)", "additive", "linear", "multihead(positions=rotary)", "hard", "global-query"]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(("name", "kind"), [(n, k) for n, k in SERVED if MODELS[n].takes_attention])
def test_another_attention_can_be_put_in(name, kind, attention):
    model = small(name, kind, attention=attention)
    given = batch(kind, (N, N, N))
    assert model(given).shape == shape_of(kind, given)


def test_a_model_without_a_place_for_attention_says_so():
    with pytest.raises(regard.RegardError, match="no place for another attention"):
        small("ntm", "bits", attention="local")


def test_a_decoder_refuses_an_attention_that_looks_ahead():
    for name in ("static-memory", "interactive", "ntm"):
        with pytest.raises(regard.RegardError, match="cannot be causal"):
            small("decoder", "language", attention=name)


def test_a_problem_that_is_not_served_names_who_can():
    with pytest.raises(regard.RegardError, match=r"encoder cannot answer with another sequence.*transformer"):
        small("encoder", "translate")
    with pytest.raises(regard.RegardError, match=r"ntm does not read tokens.*decoder"):
        small("ntm", "language")
    assert models.problem_for("encoder", [PROBLEMS["language"], PROBLEMS["masked"]]) is PROBLEMS["masked"]


def test_options_may_stand_in_the_name_and_unknown_ones_are_listed():
    model = models.build("decoder(layers=3, attention=local(window=5))", PROBLEMS["language"], dim=16)
    assert len(model.stack.layers) == 3 and model.stack.layers[0].attention.window == 5
    with pytest.raises(regard.RegardError, match="Did you mean 'layers'"):
        models.build("decoder", PROBLEMS["language"], layer=3)
    with pytest.raises(regard.RegardError, match="Did you mean 'decoder'"):
        models.build("decodr", PROBLEMS["language"])


def test_every_model_of_the_issue_exists():
    wanted = "transformer encoder decoder transformer-xl seq2seq gla ntm lstm-attention"
    assert {*wanted.split(), "static-transformer", "dynamic-transformer"} <= set(models.names())


@pytest.mark.parametrize("name", ["static-transformer", "dynamic-transformer"])
def test_both_transformers_of_the_table_see_the_whole_input(name):
    """The first row of an answer per position depends on the last input."""
    model = small(name, "masked").double().eval()
    given = batch("masked", (N, N, N))
    changed = given.inputs.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % (WORDS - 3)
    assert not torch.allclose(model(Batch.of(changed))[:, 0], model(given)[:, 0], atol=1e-6)


def test_the_dynamic_transformer_reads_both_ways_unless_it_writes():
    for kind, both in (("classify", True), ("masked", True), ("language", False), ("bits", False)):
        for attention in (None, "dynamic-memory(segment=3, update=memory)"):
            layers = small("dynamic-transformer", kind, attention=attention).stack.layers
            assert all(layer.attention.bidirectional is both for layer in layers), kind
    one_way = small("dynamic-transformer", "classify", attention="dynamic-memory(bidirectional=false)")
    assert not one_way.stack.layers[0].attention.bidirectional


def test_the_transformer_has_six_layers_on_each_side_by_default():
    model = models.build("transformer", PROBLEMS["translate"], dim=16)
    assert len(model.encoder.layers) == len(model.decoder.layers) == 6


def test_an_encoders_weights_carry_over_from_blanks_to_classes():
    filled, judge = small("encoder", "masked").state_dict(), small("encoder", "classify").state_dict()
    shared = {n for n in filled if n in judge and filled[n].shape == judge[n].shape}
    assert {n for n in judge if not n.startswith("head.")} <= shared


def test_segments_of_transformer_xl_are_one_reading_without_gradients():
    """Its layers see a fixed number of rows back, so cutting the text anywhere changes nothing but the gradients."""
    given = batch("language", (N, N, N))
    model = small("transformer-xl", "language", segment=4, memory=3).double().eval()
    whole = copy.deepcopy(model)
    whole.segment = 100
    assert torch.allclose(model(given), whole(given), atol=1e-12)


def test_alignments_of_seq2seq_are_weights_over_the_source():
    for attention in ("additive", "general", "local-p(window=3)", "multihead(num_heads=2)"):
        model = small("seq2seq", "translate", attention=attention, attention_layers=2).eval()
        given = batch("translate")
        found = model.alignments(given)
        assert found.shape == (B, T, N) and (found >= 0).all()
        assert (found[1, :, 6:] == 0).all()
        assert (found.sum(-1) <= 1 + 1e-5).all()
        if not attention.startswith("local-p"):
            assert torch.allclose(found.sum(-1), torch.ones(B, T), atol=1e-5)


def test_shifted_targets_begin_with_the_start():
    assert shifted(torch.tensor([[5, 6, 7]]), 1).tolist() == [[1, 5, 6]]
