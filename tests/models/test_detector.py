"""`detector` and `segmenter`: what they read and give, what they attend to, and that they learn."""

import pytest
import torch

import regard
from regard_workbench import models, tasks
from regard_workbench.models.parts.picture_features import cell_centres
from regard_workbench.tasks import Problem
from regard_workbench.tasks.answers import Boxes, PixelClasses
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.streams import Patches, Vectors
from regard_workbench.tasks.pictures.patches import cut

B, CLASSES = 3, 5


def problem(answer, side=3, rows=4, channels=2):
    return Problem.of(Patches.of(channels, rows * side, rows * side, side), answer)


def batch(posed):
    spec = posed.inputs
    shape = (B, spec.channels, spec.rows * spec.side, spec.columns * spec.side)
    return Batch.of(cut(torch.rand(shape, generator=torch.Generator().manual_seed(2)), spec))


def test_the_detector_answers_with_scores_and_boxes_for_each_patch_then_for_each_query() -> None:
    posed = problem(Boxes(CLASSES))
    net = models.build("detector", posed, dim=16, num_heads=2, queries=7, decoder_layers=2, width=4)
    found = net(batch(posed))
    assert [tuple(one.shape) for one in found] == [(B, count, CLASSES + 5) for count in (16, 7, 7)]
    for one in found:
        assert one[..., CLASSES + 1 :].min() >= 0 and one[..., CLASSES + 1 :].max() <= 1
    # Before any training no box moves: those of the proposals lie around the patches, those of the queries among them.
    boxes = found[0][0, :, CLASSES + 1 :]
    assert torch.allclose(boxes[:, :2], cell_centres(4, 4), atol=1e-6) and torch.allclose(
        boxes[:, 2:], torch.tensor(0.3)
    )
    sure = found[0][0, :, : CLASSES + 1].softmax(-1)[:, :-1].amax(-1)
    chosen = sure.topk(7).indices
    assert torch.allclose(found[-1][0, :, CLASSES + 1 :], boxes[chosen], atol=1e-6)
    assert len(net.predict(found, batch(posed))[0]) == 7
    few = models.build("detector", posed, dim=16, num_heads=2, queries=99, width=4)
    assert few(batch(posed))[-1].shape[1] == 16  # a query for each patch at most


def test_every_part_of_the_detector_learns() -> None:
    posed = problem(Boxes(CLASSES))
    net = models.build("detector", posed, dim=16, num_heads=2, queries=7, decoder_layers=2, width=4)
    for says in net.says:
        torch.nn.init.normal_(says.moves.weight)
    target = torch.tensor([[1.0, 0.1, 0.1, 0.5, 0.6, 0.0]]).expand(B, 1, 6)
    given = batch(posed).answered(target)
    total, _ = net.loss(net(given), given)
    total.backward()
    still = [name for name, parameter in net.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    # The biases of keys never move a softmax.
    assert [name for name in still if not name.endswith("key_map.bias")] == []


def test_the_segmenter_scores_each_class_at_each_pixel() -> None:
    for side in (1, 3, 4):
        posed = problem(PixelClasses(CLASSES), side)
        net = models.build("segmenter", posed, dim=16, num_heads=2, width=4)
        found = net(batch(posed))
        assert found.shape == (B, 4 * side, 4 * side, CLASSES)
        (first, *_) = net.predict(found, batch(posed))
        assert torch.equal(torch.tensor(first), found[0].argmax(-1))


@pytest.mark.parametrize(
    ("name", "answer", "rows"), [("detector", Boxes(CLASSES), 7), ("segmenter", PixelClasses(CLASSES), CLASSES)]
)
def test_what_each_query_or_class_attended_to_is_seen(name, answer, rows) -> None:
    posed = problem(answer)
    options = {"queries": 7} if name == "detector" else {}
    net = models.build(name, posed, dim=16, num_heads=2, width=4, decoder_layers=2, **options).eval()
    with regard.observe(net) as seen, torch.no_grad():
        net(batch(posed))
    weights = seen["decoder.1.cross"].weights()
    assert weights.shape == (B, 2, rows, 16) and torch.allclose(weights.sum(-1), torch.ones(B, 2, rows))


def test_pictures_do_not_change_each_other() -> None:
    for name, answer in (("detector", Boxes(CLASSES)), ("segmenter", PixelClasses(CLASSES))):
        posed = problem(answer)
        net = models.build(name, posed, dim=16, num_heads=2, width=4).eval()
        whole = batch(posed)
        alone, found = net(Batch.of(whole.inputs[1:2])), net(whole)
        for one, part in zip(alone, found, strict=True) if name == "detector" else [(alone, found)]:
            assert torch.allclose(part[1:2], one, atol=1e-5)


def test_another_attention_among_the_patches_and_wrong_sizes() -> None:
    posed = problem(Boxes(CLASSES))
    net = models.build("detector", posed, dim=16, num_heads=2, width=4, attention="linear")
    assert net(batch(posed))[-1].shape[0] == B
    with pytest.raises(regard.RegardError, match="queries: expected a whole number of at least 1"):
        models.build("detector", posed, queries=0)
    assert not models.fits(models.MODELS["detector"], Problem.of(Vectors(4, 9), Boxes(CLASSES)))
    assert models.problem_for("segmenter", tasks.build("segment").problems())
