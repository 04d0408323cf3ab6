"""Sigmoid, sparsemax, entmax15 and hard in place of softmax."""
