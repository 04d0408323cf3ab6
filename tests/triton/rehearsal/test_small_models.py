"""Tests of the kernels for small models that say something else in a rehearsal: here products are in bfloat16.

Their blocks are the same everywhere, so that the tests can be. Those of Neural Turing Machines and of updates compute
in float32 on every device and have nothing to rehearse.
"""

from tests.triton.test_fused_head import test_the_loss_and_every_gradient_are_those_of_cross_entropy as test_losses
from tests.triton.test_fused_lstm import kernels as lstm_kernels
from tests.triton.test_fused_lstm import test_rows_states_and_every_gradient_are_those_of_torch as test_lstm
from tests.triton.test_fused_memory import (
    test_outputs_and_all_gradients_are_those_of_the_plain_twin as test_dynamic_memory,
)
from tests.triton.test_fused_pooled import (
    test_the_loss_and_every_gradient_are_those_of_cross_entropy as test_pooled_losses,
)
from tests.triton.test_fused_rows import kernels
from tests.triton.test_fused_rows import test_stages_equal_the_modules_in_outputs_and_every_gradient as test_rows
from tests.triton.test_fused_stack import (
    test_short_attention_and_its_gradients_are_those_of_the_formula as test_short_attention,
)
from tests.triton.test_fused_static import (
    test_a_layer_and_all_its_gradients_are_those_of_its_modules as test_static_memory,
)
from tests.triton.test_fused_vectors import test_rows_and_gradients_are_those_of_the_modules as test_vectors

# Fixtures, and tests that pytest finds by these names.
__all__ = [
    "kernels",
    "lstm_kernels",
    "test_dynamic_memory",
    "test_losses",
    "test_lstm",
    "test_pooled_losses",
    "test_rows",
    "test_short_attention",
    "test_static_memory",
    "test_vectors",
]
