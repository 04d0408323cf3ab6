"""Walks over every architecture that the installed libraries have.

How much of their attention is seen (`observe_everything`), and whether it is equal on regard (`huggingface_everything`).
Their tables stand in docs/seeing.md and bench/recorded/huggingface.md; `make test` builds, counts and compares a few.
"""
