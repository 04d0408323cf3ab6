"""What tasks are made of: the base class and the registry, streams, batches, how examples are shown."""
