"""Several processes for one run: what they agree on after each step, and how FSDP shards a model among them."""
