"""Dot products: forward, backward, decoding, weights of chosen rows."""
