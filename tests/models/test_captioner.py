"""captioner: a step of the decoder by hand, the residual network, glances that are chosen, coverage, decoding."""

import math

import pytest
import torch

import regard
from regard.nn.hard import Hard
from regard.nn.parts import loss_terms
from regard.nn.parts.score_function import ChoiceTerm, Drawn
from regard_workbench import models
from regard_workbench.models.captioner import Coverage
from regard_workbench.models.parts.glance_reward import GlanceReward
from regard_workbench.models.parts.recurrent import RecurrentState
from regard_workbench.models.seq2seq import Seq2seqState
from regard_workbench.tasks import Batch, Problem, Writes
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import cut

OUT, TARGET, DIM = 11, 7, 10
SPEC = Patches.of(3, 8, 12, 4)  # 2 × 3 patches
PROBLEM = Problem.of(SPEC, Writes(OUT, TARGET, start=1, end=2))


def built(**options):
    torch.manual_seed(5)
    return models.build("captioner", PROBLEM, **{"dim": DIM, "dropout": 0.0, **options})


def pictures(count=2, seed=3):
    return torch.rand(count, 3, 8, 12, generator=torch.Generator().manual_seed(seed))


def question(count=2):
    targets = torch.randint(3, OUT, (count, TARGET), generator=torch.Generator().manual_seed(4))
    keep = torch.arange(TARGET) < torch.tensor([TARGET, 4] * count)[:count, None]
    return Batch.of(cut(pictures(count), SPEC), None, targets, keep)


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


def test_one_step_of_the_decoder_is_that_of_the_paper_by_hand():
    """Width 2, a plain RNN, two places; the last word is embedded as y = (1, 2), the state is s = (0, 1)."""
    model = built(dim=2, cell="rnn").double().eval()
    x = math.atanh(math.log(3) / 2)
    with torch.no_grad():
        model.target_embedding.rows.weight[3] = torch.tensor([1.0, 2.0]) / model.target_embedding.scale
        cell = model.decoder.cells[0]
        cell.bias_ih.zero_(), cell.bias_hh.zero_()
        cell.weight_ih.copy_(torch.tensor([[0.1, 0.0, 0.2, 0.0], [0.0, 0.1, 0.0, 0.1]]))  # of y | of z
        cell.weight_hh.copy_(torch.tensor([[0.5, 0.0], [0.0, -0.4]]))
        model.joins[0].map.weight.copy_(torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.1, 0.0, 0.0]]))  # z | s
        model.joins[0].map.bias.zero_()
        model.gate.weight.copy_(torch.tensor([[5.0, 2.0]]))
        model.gate.bias.fill_(-1.0)
        model.head.logits = torch.nn.Identity()
        compare = model.attentions[0].compare
        compare.query_weight.copy_(torch.tensor([[[0.0, -x], [0.0, 0.0]]]))
        compare.key_weight.copy_(torch.tensor([[[x, 0.0], [0.0, 0.0]]]))
        compare.vector.copy_(torch.tensor([[2.0, 0.0]]))
    places = torch.tensor([[[0.0, 4.0], [1.0, 8.0]]], dtype=torch.float64)
    state = Seq2seqState(
        RecurrentState(torch.tensor([[[0.0, 1.0]]], dtype=torch.float64)),
        tuple(layer.initial_state(1) for layer in model.attentions),
        places,
    )
    rows, _, after = model._continued(torch.tensor([[3]]), state)
    # e = (2 tanh(−x), 2 tanh(0)) = (−ln 3, 0): weights 1/4 and 3/4, mean of the places (0.75, 7).
    # β = σ(5·0 + 2·1 − 1) = σ(1), z = β (0.75, 7).
    # s' = tanh(0.1·1 + 0.2·0.75 β + 0.5·0,  0.1·2 + 0.1·7 β − 0.4·1), h̃ = tanh(s'[0], 0.1·7 β)
    beta = sigmoid(1.0)
    hidden = [math.tanh(0.1 + 0.15 * beta), math.tanh(-0.2 + 0.7 * beta)]
    assert after.recurrent.hidden[0, 0].tolist() == pytest.approx(hidden, abs=1e-6)
    assert rows[0, 0].tolist() == pytest.approx([math.tanh(hidden[0]), math.tanh(0.7 * beta)], abs=1e-6)


def test_the_first_state_is_made_of_the_mean_of_all_places():
    model, given = (built().double().eval(), question().map(lambda t: t.double() if t.is_floating_point() else t))
    places = model.features(given.inputs)[0]
    assert places.shape == (2, 6, DIM)
    state = model.initial_state(given)
    expected = torch.tanh(places.mean(1) @ model.begin.weight.T + model.begin.bias)
    assert torch.allclose(state.recurrent.hidden[:, 0], expected) and (state.recurrent.cell == 0).all()


def test_features_do_not_depend_on_the_other_pictures_of_a_batch():
    model, given = built().eval(), question()
    together, _ = model.features(given.inputs)
    for row in range(2):
        alone, _ = model.features(given.inputs[row : row + 1])
        assert torch.allclose(alone[0], together[row], atol=1e-5)


def test_videos_are_refused():
    spec = Patches.of(1, 8, 8, 4, frames=2)
    with pytest.raises(regard.RegardError, match="a video"):
        models.build("captioner", Problem.of(spec, PROBLEM.answer))


def test_decoding_step_by_step_is_the_forward_pass_and_a_beam_scores_its_texts_by_it():
    model, given = built(layers=2, cell="gru").eval(), question()
    whole = model(given).log_softmax(-1)
    state, tokens = model.initial_state(given), torch.cat([torch.full((2, 1), 1), given.targets[:, :-1]], 1)
    for place in range(TARGET):
        logits, state = model.step(tokens[:, place : place + 1], state)
        assert torch.allclose(logits[:, 0].log_softmax(-1), whole[:, place], atol=1e-5)
    found = model.generate(given, method="beam", beam=5, n_best=3, length_penalty=0.0)
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 3
        for one in hypotheses:
            said = torch.tensor([one.tokens])
            logs = model(given.rows([row]).answered(said)).log_softmax(-1)
            assert float(logs.gather(-1, said[..., None]).sum().detach()) == pytest.approx(one.score, abs=1e-4)


def test_soft_is_additive_and_hard_learns_by_the_score_function():
    assert built().attentions[0].entry.name == "additive"
    model = built(attention="hard")
    (layer,) = model.attentions
    assert isinstance(layer, Hard) and layer.reinforce is not None
    assert built(attention="dot").attentions[0].entry.name == "dot"
    given = question()
    model.train()
    seen = []
    offer = model.reward.offer
    model.reward.offer = lambda glances, *rest: (seen.extend(glances), offer(glances, *rest))
    with loss_terms.collecting() as terms:
        outputs = model(given)
    assert len(seen) == TARGET, "one glance for each word"
    assert len(terms) == 1, "the glances of a description are judged together, word by word"
    losses, counts = model.example_losses(outputs, given)
    sum(term(losses.detach(), counts) for term in terms).backward()
    scored = [layer.query.weight, layer.key.weight] if hasattr(layer, "query") else list(layer.parameters())[:2]
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in scored)
    model.eval()
    weights = model.alignments(given)
    assert torch.equal(weights.amax(-1), torch.ones(2, TARGET)) and torch.equal(weights.sum(-1), torch.ones(2, TARGET))


def test_each_glance_is_judged_by_its_word_by_hand():
    """Two words of one description, three places; the second example's second word is padding."""
    reward = GlanceReward(2, weight=0.5)
    with torch.no_grad():
        reward.expects.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 2.0]]))
        reward.expects.bias.fill_(0.5)
    odds = (torch.tensor([[[0.5, 0.25, 0.25]], [[0.2, 0.2, 0.6]]]), torch.tensor([[[0.1, 0.8, 0.1]], [[1 / 3] * 3]]))
    logs = [one.log()[:, :, None].requires_grad_() for one in odds]  # (b,1,1,3) of each word
    index = [torch.tensor([0, 2]), torch.tensor([1, 0])]
    soft = [torch.tensor([False, False]), torch.tensor([False, True])]
    made = [
        Drawn(log, at.view(2, 1, 1, 1), mean.view(2, 1, 1, 1)) for log, at, mean in zip(logs, index, soft, strict=True)
    ]
    states = torch.tensor([[[1.0, 9.0], [0.0, 9.0]], [[2.0, 9.0], [0.0, 9.0]]])
    words = torch.tensor([[[9.0, 0.5], [9.0, 0.0]], [[9.0, 0.0], [9.0, 0.0]]])
    losses = torch.tensor([[3.0, 0.25], [2.0, 100.0]])
    keep = torch.tensor([[True, True], [True, False]])
    with loss_terms.collecting() as terms:
        reward.offer([ChoiceTerm(one, torch.zeros(()), 0.1) for one in made], states, words, losses, keep)
    # The baseline expects 1 + 2·0.5 + 0.5 = 2.5 and 0.5; 2 + 0.5 = 2.5: advantages 0.5, −0.25 and −0.5.
    chosen = 0.5 * math.log(0.5) - 0.25 * math.log(0.8) - 0.5 * math.log(0.6)
    entropy = -sum(p * math.log(p) for p in (0.5, 0.25, 0.25, 0.1, 0.8, 0.1, 0.2, 0.2, 0.6))
    learned = 0.5 * (0.5**2 + 0.25**2 + 0.5**2)  # all errors are below 1, where the loss is half the square
    (term,) = terms
    assert float(term(None, None).detach()) == pytest.approx(0.5 * (chosen - 0.1 * entropy + learned), rel=1e-5)
    term(None, None).backward()
    assert (logs[1].grad[1] == 0).all(), "a word that is padding, and a glance at the mean, teach nothing"


def test_hard_glances_learn_from_the_score_function_and_half_of_them_from_the_mean():
    """With every glance a choice, scores learn from the term alone; with some at the mean, from the loss as well."""
    given = question()
    for form, learns in (("hard(estimator=reinforce)", False), ("hard", True)):
        model = built(attention=form).train()
        model.loss(model(given), given)[0].backward()
        grad = model.attentions[0].key_map.weight.grad
        assert (grad is not None and bool(grad.any())) is learns, form


def test_coverage_is_worked_out_by_hand():
    term = Coverage(0.5)
    weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], [[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]]])
    # First example: columns sum to 1.75 and 1.25; second, of which two rows are real: 1.5 and 0.5.
    keep = torch.tensor([[True] * 3, [True, True, False]])
    expected = [0.5 * (0.75**2 + 0.25**2), 0.5 * (0.5**2 + 0.5**2)]
    assert term.penalty(weights, keep).tolist() == pytest.approx(expected)


def test_coverage_is_offered_in_training_with_the_weights_of_the_model_and_refused_for_choices():
    model, given = built(coverage=1.0), question()
    with loss_terms.collecting() as terms:
        model(given)
    seen = model.alignments(given) * given.target_keep[..., None]
    expected = float((1 - seen.sum(1)).square().sum().detach())
    assert float(terms[0](None, None).detach()) == pytest.approx(expected, rel=1e-5)
    with loss_terms.collecting() as terms:
        model.eval()(given)
    assert not terms
    for options in ({"coverage": -1.0}, {"coverage": 1.0, "attention": "hard"}):
        with pytest.raises(regard.RegardError, match="coverage: expected a weight of at least 0"):
            built(**options)


def test_where_each_word_looked_is_observed():
    model, given = built().eval(), question(1)
    with regard.observe(model) as seen:
        model(given)
    (name,) = {name.partition("#")[0] for name in seen.names()}
    assert name == "attentions.0"
    found = model.attention_to_source(given)["attentions.0"]
    assert found.shape == (1, 1, TARGET, 6) and torch.allclose(found.sum(-1), torch.ones(1, 1, TARGET))
    assert torch.allclose(found[:, 0], model.alignments(given), atol=1e-6)


def test_a_negative_reward_is_refused():
    with pytest.raises(regard.RegardError, match="reward: expected a weight of at least 0"):
        built(attention="hard", reward=-1.0)
