"""What masks, scores, biases and normalisers are made of: a frozen value, and the grid of a call."""
