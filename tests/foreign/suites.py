"""The suites of tests that others wrote: which of their files run, and what takes the original's place."""

from dataclasses import dataclass, field

MODELS = ("llama", "bert", "gpt2", "t5", "gemma2", "mistral", "qwen2", "vit")
SHARP = "12"  # weights this many times as large
WRONG_SCALE = "1.1"


@dataclass(frozen=True)
class Suite:
    """Tests that run twice, without regard and with it."""

    name: str
    files: tuple[str, ...]
    choose: str  # pytest's -k
    plugin: str
    folder: str  # of the checkout, in which the tests expect to run
    place: str = "function"  # what of regard's takes the original's place: see the plugins
    settings: dict[str, str] = field(default_factory=dict)  # environment of both runs
    notices: dict[str, str] = field(default_factory=dict)  # of a third run, in which a test has to fail


def of_pytorch():
    """PyTorch's tests of attention."""
    transformers, attention = "test_transformers.py", "nn/test_multihead_attention.py"
    common = {"plugin": "regard_in_torch", "folder": "test"}
    as_reference = {"REFERENCE": "torch"}  # these tests compare with torch's plain formula
    return [
        Suite("pytorch/sdpa", (transformers,), "TestSDPA or TestAttnBias", settings=as_reference, **common),
        Suite("pytorch/encoders", (transformers, attention), "TestTransformers or TestMultihead", **common),
        Suite(
            "pytorch/layers",
            (transformers, attention),
            "(TestTransformers or TestMultihead) and not test_scaled_dot_product",
            place="layers",
            **common,
        ),
    ]


def of_transformers(models):
    """Hugging Face's tests of each model, whole, and those that compare or generate once more with sharp weights."""
    suites = []
    for model in models:
        files = (f"tests/models/{model}/test_modeling_{model}.py",)
        common = {"files": files, "plugin": "regard_in_transformers", "folder": "."}
        elsewhere = "fsdp or tensor_parallel or test_tp"  # other processes, where the plugin is not
        compares = "eager_matches_sdpa or eager_padding or generat or batching_equivalence or padding"
        suites += [
            Suite(f"transformers/{model}", choose=f"not ({elsewhere})", **common),
            Suite(
                f"transformers/{model}/sharp",
                choose=f"({compares}) and not (compil or fsdp)",
                settings={"SHARP": SHARP},
                notices={"WRONG_SCALE": WRONG_SCALE} if model == models[0] else {},
                **common,
            ),
        ]
    return suites
