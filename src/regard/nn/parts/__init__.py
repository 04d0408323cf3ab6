"""What layers are made of: the base classes and the registry, heads, blocks, masks, caches, states."""
