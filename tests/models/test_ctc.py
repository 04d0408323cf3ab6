"""CTC prefix probabilities and the joint search, against the enumeration of every path of a small lattice."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from regard_workbench import models
from regard_workbench.models.parts.ctc import IMPOSSIBLE, CtcPrefixes
from regard_workbench.tasks import Batch, Problem, Writes
from regard_workbench.tasks.parts.streams import Frames

BLANK, END, COUNT = 2, 3, 6
TOKENS = (4, 5)
BANDS = 8


def collapsed(path):
    """Equal neighbours are one token, blanks are left out."""
    return tuple(t for i, t in enumerate(path) if t != BLANK and (i == 0 or t != path[i - 1]))


def enumerated(log_probabilities):
    """The probability of each transcript, by adding up all paths over tokens and blank."""
    found = {}
    for path in itertools.product((BLANK, *TOKENS), repeat=len(log_probabilities)):
        said = collapsed(path)
        found[said] = found.get(said, 0.0) + math.exp(
            sum(float(log_probabilities[t, token]) for t, token in enumerate(path))
        )
    return found


def lattice(frames, seed=0):
    """Log-probabilities of frames over the blank and two tokens; the others are all but impossible."""
    scores = torch.full((frames, COUNT), -60.0, dtype=torch.float64)
    random = torch.Generator().manual_seed(seed)
    scores[:, [BLANK, *TOKENS]] = 2 * torch.randn(frames, 3, dtype=torch.float64, generator=random)
    return scores.log_softmax(-1)


def begins(probabilities, prefix):
    return sum(p for said, p in probabilities.items() if said[: len(prefix)] == prefix)


@pytest.mark.parametrize("seed", range(3))
def test_prefix_probabilities_are_sums_over_all_paths(seed):
    frames = lattice(5, seed)
    expected = enumerated(frames)
    for prefix in [(), (4,), (5, 4), (4, 4), (4, 5, 5), (5, 5, 5)]:
        rows = CtcPrefixes(frames[None], torch.tensor([5]), blank=BLANK, end=END)
        for token in prefix:
            rows.extend(torch.tensor([token]))
        assert rows.whole().exp().item() == pytest.approx(expected.get(prefix, 0.0), rel=1e-9)
        gains = rows.gains()[0].exp()
        whole = begins(expected, prefix)
        for token in TOKENS:
            assert gains[token].item() == pytest.approx(begins(expected, (*prefix, token)) / whole, rel=1e-9)
        assert gains[END].item() == pytest.approx(expected.get(prefix, 0.0) / whole, rel=1e-9)
        assert gains[[*TOKENS, END]].sum().item() == pytest.approx(1.0), "a prefix goes on or ends"


ZEROS = {
    "a token": [(2, 4)],
    "the blank": [(1, BLANK)],
    "all but one": [(0, 4), (0, 5), (3, BLANK), (3, 4)],
    "a token in all frames": [(t, 5) for t in range(5)],
}


@pytest.mark.parametrize("zero", [-math.inf, -1e30])
@pytest.mark.parametrize("where", ZEROS)
def test_tokens_of_probability_zero_leave_the_other_paths(where, zero):
    frames = lattice(5)
    for t, token in ZEROS[where]:
        frames[t, token] = zero
    frames = frames.log_softmax(-1)
    expected = enumerated(frames)
    for prefix in [(), (4,), (5, 4), (4, 4), (4, 5, 5)]:
        rows = CtcPrefixes(frames[None], torch.tensor([5]), blank=BLANK, end=END)
        for token in prefix:
            rows.extend(torch.tensor([token]))
        assert rows.whole().exp().item() == pytest.approx(expected.get(prefix, 0.0), rel=1e-8)
        whole, gains = begins(expected, prefix), rows.gains()[0]
        for token in TOKENS:
            further = begins(expected, (*prefix, token))
            if further:
                assert gains[token].exp().item() == pytest.approx(further / whole, rel=1e-8)
            else:
                assert gains[token].item() == IMPOSSIBLE


def test_rows_of_different_lengths_are_followed_as_if_alone_and_can_be_reordered():
    sounds = [lattice(5, 1), lattice(3, 2)]
    together = torch.zeros(2, 5, COUNT, dtype=torch.float64)  # padding of probability 1 for everything
    for row, one in enumerate(sounds):
        together[row, : len(one)] = one
    rows = CtcPrefixes(together, torch.tensor([5, 3]), blank=BLANK, end=END)
    rows.extend(torch.tensor([4, 5]))
    rows.reorder(torch.tensor([1, 0, 1]))
    rows.extend(torch.tensor([4, 4, 5]))
    for row, (sound, prefix) in enumerate([(1, (5, 4)), (0, (4, 4)), (1, (5, 5))]):
        alone = CtcPrefixes(sounds[sound][None], torch.tensor([len(sounds[sound])]), blank=BLANK, end=END)
        for token in prefix:
            alone.extend(torch.tensor([token]))
        assert torch.allclose(rows.gains()[row], alone.gains()[0], rtol=1e-9)


def test_a_transcript_that_does_not_fit_into_the_frames_is_impossible_but_finite():
    rows = CtcPrefixes(lattice(2)[None], torch.tensor([2]), blank=BLANK, end=END)
    for token in (4, 4, 4):
        gains = rows.gains()
        assert gains.isfinite().all() and (gains <= 0).all()
        rows.extend(torch.tensor([token]))
    assert rows.gains()[0, 4].item() == IMPOSSIBLE


def test_whole_transcripts_have_the_likelihood_that_torch_computes():
    random = torch.Generator().manual_seed(7)
    frames = torch.randn(1, 61, 11, dtype=torch.float64, generator=random).log_softmax(-1)
    said = torch.randint(3, 11, (13,), generator=random)
    rows = CtcPrefixes(frames, torch.tensor([61]), blank=0, end=1)
    for token in said:
        rows.extend(token[None])
    expected = F.ctc_loss(frames.transpose(0, 1), said[None], torch.tensor([61]), torch.tensor([13]), reduction="sum")
    assert rows.whole().item() == pytest.approx(-expected.item(), rel=1e-12)


def recognizer(seed=0, **options):
    torch.manual_seed(seed)
    problem = Problem.of(Frames(4 * BANDS, 23, BANDS), Writes(COUNT, 4, start=BLANK, end=END))
    return models.build("recognizer", problem, dim=16, layers=1, num_heads=2, **options).eval()


def sounds(lengths, seed=1):
    random = torch.Generator().manual_seed(seed)
    data = torch.randn(len(lengths), max(lengths), 4 * BANDS, generator=random)
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Batch.of(data, None if bool(keep.all()) else keep)


@torch.no_grad()
@pytest.mark.parametrize("joint", [0.4, 1.0])
def test_a_wide_joint_beam_finds_what_enumeration_finds(joint):
    """Every transcript of at most three tokens, scored by the formula of the docstring."""
    model, batch = recognizer(joint=joint), sounds([4])
    spelled = model.spell(model.read(batch))[0].double().log_softmax(-1)
    paths = {}
    for path in itertools.product(range(COUNT), repeat=4):
        said = collapsed(path)
        paths.setdefault(said, []).append(sum(float(spelled[t, token]) for t, token in enumerate(path)))
    best = []
    for length in range(4):
        for said in itertools.product([t for t in range(COUNT) if t not in (BLANK, END)], repeat=length):
            if said not in paths:
                continue  # three equal tokens need five frames
            targets = torch.tensor([[*said, END]])
            written = model(batch.answered(targets)).written.double().log_softmax(-1)
            attention = written.gather(-1, targets[..., None]).sum().item()
            ctc = torch.tensor(paths[said], dtype=torch.float64).logsumexp(0).item()
            best.append((joint * ctc + (1 - joint) * attention, [*said, END]))
    best.sort(key=lambda one: -one[0])
    found = model.generate(batch, method="beam", beam=300, n_best=3, length_penalty=0.0)[0]
    assert [one.tokens for one in found] == [tokens for _, tokens in best[:3]]
    assert [one.score for one in found] == pytest.approx([score for score, _ in best[:3]], abs=1e-5)


def test_transcripts_of_a_batch_are_those_of_its_sounds_alone():
    model, lengths = recognizer(), [7, 3, 5]
    batch = sounds(lengths)
    for method in ("greedy", "beam"):
        together = model.generate(batch, method=method)
        for row, length in enumerate(lengths):
            alone = model.generate(Batch.of(batch.inputs[row : row + 1, :length]), method=method)
            assert together[row][0].tokens == alone[0][0].tokens
            assert together[row][0].score == pytest.approx(alone[0][0].score, abs=1e-5)


def test_padding_behind_a_sound_is_not_read():
    model = recognizer().double()
    batch = sounds([7, 4])
    targets = torch.tensor([[4, 5, END], [5, END, 0]])
    together = model(Batch.of(batch.inputs.double(), batch.keep, targets))
    spoilt = batch.inputs.double().masked_fill(~batch.keep[..., None], torch.nan)
    alone = model(Batch.of(spoilt[1:, :4], None, targets[1:]))
    assert torch.allclose(together.spelled[1, :4], alone.spelled[0], atol=1e-12)
    assert torch.allclose(together.written[1], alone.written[0], atol=1e-12)
    garbage = model(Batch.of(batch.inputs.double().masked_fill(~batch.keep[..., None], 99.0), batch.keep, targets))
    assert torch.allclose(together.spelled[1, :4], garbage.spelled[1, :4], atol=1e-12)


@torch.no_grad()
def test_the_loss_weighs_both_parts_and_counts_tokens():
    batch = sounds([9, 6])
    targets, keep = torch.tensor([[4, 4, END], [5, END, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    given = Batch.of(batch.inputs, batch.keep, targets, keep)
    model = recognizer(ctc=0.25)
    outputs = model(given)
    total, count = model.loss(outputs, given)
    written = outputs.written.log_softmax(-1)
    attention = -(written[0, range(3), [4, 4, END]].sum() + written[1, range(2), [5, END]].sum())
    ctc = 0.0
    for row, said, frames in ((0, (4, 4), 9), (1, (5,), 6)):
        rows = CtcPrefixes(
            outputs.spelled[row : row + 1, :frames].log_softmax(-1), torch.tensor([frames]), blank=BLANK, end=END
        )
        for token in said:
            rows.extend(torch.tensor([token]))
        ctc -= rows.whole().item()
    assert total.item() == pytest.approx(0.25 * ctc + 0.75 * attention.item(), rel=1e-4) and count.item() == 5


def test_every_weight_learns_from_the_joint_loss():
    model, batch = recognizer(), sounds([9, 6])
    given = batch.answered(torch.tensor([[4, 5, END], [5, END, 0]]), torch.tensor([[True] * 3, [True, True, False]]))
    model.loss(model(given), given)[0].backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


def test_shares_outside_zero_and_one_are_refused():
    from regard.errors import BadValue

    with pytest.raises(BadValue, match=r"ctc: expected a share from 0 to 1, got 1\.5"):
        recognizer(ctc=1.5)
    with pytest.raises(BadValue, match="at each position"):
        models.build("recognizer", Problem.of(Frames(3 * BANDS, 23, BANDS), Writes(COUNT, 4, BLANK, END)))
