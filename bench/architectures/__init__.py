"""The sweep over other libraries' architectures: building them small, counting their attention, and observing them."""
