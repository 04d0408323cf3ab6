"""Acting: environments by name, episodes made with a policy, and what a policy learns from them."""
