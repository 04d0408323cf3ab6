"""What models are made of: the base class and the registry, embeddings, stacks, recurrent layers, memories."""
