"""What all kernels share: how they are launched, blocks and their sizes, masks and biases inside a kernel."""
