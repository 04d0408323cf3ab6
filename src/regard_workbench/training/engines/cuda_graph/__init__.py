"""A whole training step as one CUDA graph, and the optimiser kernels that can be captured in it."""
