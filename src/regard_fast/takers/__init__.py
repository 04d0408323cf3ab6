"""What the guest takes over, by kind of module and of model: one file for each place where `fast_path` is asked."""
