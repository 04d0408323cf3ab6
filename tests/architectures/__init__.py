"""Walks over every architecture that the installed libraries have.

`observe_everything`: how much of their attention is seen; `huggingface_everything`: whether it is equal on regard.
Their tables stand in docs/seeing.md and bench/recorded/huggingface.md; `make test` builds, counts and compares a few.
"""
