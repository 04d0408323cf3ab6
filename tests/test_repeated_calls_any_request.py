"""Any request gives the same bits the first, the second and the third time, whichever way it takes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard import masks, scores
from tests.test_repeated_calls import INF, NAN, lengths, the_usual_way

ALIGNMENTS = ["bottom-right", "top-left"]
OPTIONS = [
    {},
    {"scale": 0.4},
    {"scale": -0.4},
    {"score": "dot"},
    {"dropout": 0.0},
    {"dropout": 0.4},
    {"return_logsumexp": True},
    {"normalize": "sparsemax"},
    {"score": scores.softcap(2.0), "normalize": regard.normalizers.sigmoid()},
    {"impl": "tiled"},
]


@st.composite
def requests(draw):
    """Shapes, a mask, options, a dtype, a layout, and numbers that kernels lose."""
    groups, shared, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 8]))
    queries, keys = draw(st.sampled_from([1, 1, 2, 17, 40, 130])), draw(st.sampled_from([1, 15, 16, 17, 40, 130]))
    kinds = {
        "none": None,
        "causal": masks.causal(),
        "top-left": masks.causal(align="top-left"),
        "offset": masks.causal(offset=draw(st.integers(-2, 18))),
        "window": masks.window(3),
        "full": masks.full(),
        "lengths": lengths(keys // 2, keys),
        "all lengths": lengths(keys, 0),
        "prefix": masks.prefix(3),
        "padding": masks.padding(torch.arange(keys).expand(2, -1) % 2 > 0),
        "causal window": masks.window(draw(st.integers(0, 7)), 0, align=draw(st.sampled_from(ALIGNMENTS))),
        "dilated": masks.dilated(3) & masks.causal(),
        "not": ~masks.window(2),
        "blocks": masks.blocks(5),
        "global": masks.window(3, 0) | masks.global_tokens((0, 4)),
        "documents": masks.documents(torch.arange(queries) // 5, torch.arange(keys) // 4),
        "packed": masks.packed([0, keys // 2, keys]),
        "tensor": torch.arange(queries * keys).view(queries, keys) % 3 > 0,
        "joined": masks.causal() & masks.padding(torch.arange(keys).expand(2, -1) % 5 > 0),
    }
    options = {"mask": kinds[draw(st.sampled_from(sorted(kinds)))]}
    options |= draw(st.sampled_from(OPTIONS))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shapes = ((2, queries, groups * shared, width), (2, keys, groups, width), (2, keys, groups, width))
    given = [torch.randn(shape, generator=generator).to(dtype).transpose(1, 2) for shape in shapes]
    layout = draw(st.sampled_from(["turned", "contiguous", "columns"]))
    if layout != "turned":
        given = [x.contiguous() if layout == "contiguous" else x.mT.contiguous().mT for x in given]
    poison = draw(st.sampled_from([None, None, NAN, INF, -INF, 0.0]))
    if poison is not None:
        given[draw(st.integers(0, 2))][draw(st.integers(0, 1)), 0, -1] = poison
    return given, options


def attended(tensors, options):
    torch.manual_seed(5)  # of the dropout
    return regard.attend(*tensors, **options)


@given(requests())
def test_any_request_gives_the_bits_of_the_usual_way_each_time(request):
    tensors, options = request
    with torch.no_grad():
        with the_usual_way():
            expected = attended(tensors, options)
        for _ in range(3):  # the table is filled by examples before, too
            torch.testing.assert_close(attended(tensors, options), expected, rtol=0, atol=0, equal_nan=True)


@given(requests(), st.integers(1, 7))
def test_any_gradient_has_the_bits_of_the_usual_way_each_time(request, needed):
    tensors, options = request
    leaves = [tensor.requires_grad_() for n, tensor in enumerate(tensors) if needed >> n & 1]

    def gradients():
        outputs = attended(tensors, options)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        grads = [torch.ones_like(output) for output in outputs]
        return outputs + torch.autograd.grad(outputs, leaves, grads, materialize_grads=True)

    with the_usual_way():
        expected = gradients()
    for _ in range(2):
        torch.testing.assert_close(gradients(), expected, rtol=0, atol=0, equal_nan=True)
