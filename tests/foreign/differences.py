"""What may differ when regard takes the original's place, and why. Any other difference fails."""

from dataclasses import dataclass
from fnmatch import fnmatch


@dataclass(frozen=True)
class Difference:
    """Tests that pass without regard and fail with it."""

    suites: str  # pattern of names of suites
    tests: str  # pattern of names of tests
    message: str  # what the failure says
    reason: str

    def explains(self, suite, test, messages):
        """Whether this is why a test of a suite fails with these messages."""
        is_meant = fnmatch(suite, self.suites) and fnmatch(test, self.tests)
        return is_meant and all(self.message in message for message in messages)


# Messages are parts of what the tests print.
DIFFERENCES = (
    Difference(
        "pytorch/sdpa",
        "TestSDPAFailureModesCPU::test_invalid_inputs_*",
        "regard.errors.Bad",
        "torch raises RuntimeError for a wrong argument, regard BadValue (a ValueError) or BadType (a TypeError)",
    ),
    Difference(
        "pytorch/sdpa",
        "TestSDPACPU::test_sdpa_zero_sized_tensors_*",
        "the last axis (d) must not be empty",
        "torch gives zeros for queries and keys of width 0, regard refuses them by name",
    ),
    Difference(
        "pytorch/sdpa",
        "TestSDPACPU::test_sdpa_export_unbacked_attn_mask_cpu",
        "Could not guard on data-dependent expression",
        "regard asks for its sizes while it is exported, so none of them may depend on data",
    ),
    Difference(
        "pytorch/encoders",
        "TestTransformersCPU::test_scaled_dot_product_attention_*_dropout_p_0_[25]_cpu",
        "Tensor-likes are not close",
        "the test repeats torch's random numbers; regard's dropout draws others from the same seed",
    ),
    Difference(
        "pytorch/encoders",
        "TestTransformersCPU::test_script_*",
        "keyword-arg expansion is not supported",
        "TorchScript cannot compile the function in the place of torch's; regard's own layers can be scripted",
    ),
    Difference(
        "pytorch/encoders",
        "TestTransformersCPU::test_transformerencoderlayer_subclass_cpu",
        "keyword-arg expansion is not supported",
        "TorchScript cannot compile the function in the place of torch's; regard's own layers can be scripted",
    ),
    Difference(
        "pytorch/encoders",
        "TestTransformersCPU::test_transformerencoderlayer_subclass_model_cpu",
        "Can't redefine method",
        "TorchScript remembers a layer that it could not compile in the test before",
    ),
    Difference(
        "pytorch/layers",
        "TestTransformersCPU::test_*fastpath*",
        "False is not true",
        "the test asks whether torch's fast path of encoders was taken, which replace switches off",
    ),
    Difference(
        "transformers/*/sharp",
        "*::test_eager_matches_sdpa_inference_*_fp16_*",
        "mean relative difference",
        "so large weights take float16 to the test's tolerance, where the order of a sum decides",
    ),
)
