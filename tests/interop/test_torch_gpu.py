"""The torch layer on a GPU: outputs, weights and gradients of torch's layer under every kind of mask."""

import pytest
import torch

from tests.interop.test_torch_same import masks
from tests.interop.torch_layers import assert_same, pair, rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def on_gpu(options, dtype):
    """Masks on the GPU; numbers in the dtype of the layer."""
    return {
        name: one.to("cuda", dtype if one.is_floating_point() else None) if isinstance(one, torch.Tensor) else one
        for name, one in options.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("length", [7, 67])
def test_self_attention_on_a_gpu_equals_torch_under_every_mask(dtype, length):
    theirs, ours = (layer.to("cuda", dtype) for layer in pair(24, 3, batch_first=True))
    given = rows(5, length, 24, dtype=dtype).cuda()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    for found in masks(length, length).values():
        for need_weights in (True, False):
            extra = {**on_gpu(found, dtype), "need_weights": need_weights}
            mine = call_on_gpu(ours, given, extra)
            assert_same(mine, call_on_gpu(theirs, given, extra), tolerance)


def call_on_gpu(layer, given, extra):
    """Output, weights and gradients of the parameters; the loss is a plain sum of squares."""
    output, weights = layer(given, given, given, **extra)
    loss = output.float().square().mean()
    grads = torch.autograd.grad(loss, list(layer.parameters()))
    return [output, *([] if weights is None else [weights]), *grads]


@pytest.mark.parametrize("length", [5, 33])
def test_hidden_rows_and_empty_queries_on_a_gpu_are_those_of_the_cpu(length):
    _, ours = pair(24, 4, batch_first=True)
    given, padding = rows(3, length, 24), torch.zeros(3, length, dtype=torch.bool)
    padding[0, 2:], padding[1] = True, True
    given = given.masked_fill(padding[..., None], torch.nan)
    for training in (True, False):
        for need_weights in (True, False):
            with torch.no_grad():
                options = {"need_weights": need_weights}
                expected = ours.train(training).cpu()(given, given, given, key_padding_mask=padding, **options)
                moved = given.cuda()
                found = ours.cuda()(moved, moved, moved, key_padding_mask=padding.cuda(), **options)
            torch.testing.assert_close(found[0].cpu(), expected[0], rtol=1e-4, atol=1e-4)
            assert found[0].isfinite().all()


def test_autocast_on_a_gpu_gives_the_dtypes_of_torch():
    theirs, ours = (layer.cuda() for layer in pair(24, 4, batch_first=True))
    given = rows(3, 33, 24).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mine, other = (list(layer(given, given, given)) for layer in (ours, theirs))
    assert_same(mine, other, 2e-2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_does_not_wait_for_the_gpu():
    _, ours = pair(24, 4, batch_first=True)
    ours.cuda()
    given, padding = rows(3, 33, 24).cuda(), torch.zeros(3, 33, dtype=torch.bool, device="cuda")
    later = torch.ones(33, 33, dtype=torch.bool, device="cuda").triu(1)
    options = {"key_padding_mask": padding, "attn_mask": later, "is_causal": True}
    ours(given, given, given, need_weights=False, **options)  # kernels are compiled by now
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours(given, given, given, need_weights=False, **options)
        ours(given, given, given, **options)
        with torch.no_grad():
            ours.eval()(given, given, given, need_weights=False, key_padding_mask=padding)
    finally:
        torch.cuda.set_sync_debug_mode("default")
