"""The promised numbers, each measured against a peer; `regard bench` prints them.

A few cases come with the package. A checkout has all of them in its folder `bench/cases`; see `checkout.py`.
"""
