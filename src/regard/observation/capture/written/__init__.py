"""Capturing attention that a module writes out: softmax over a product of two tensors, then a product with values."""
