"""Small models in few kernels: a guest of `regard.nn.fast_path`, which nothing imports and everything runs without."""
