"""`flex`: placeholder until written below."""
from regard.request import Request
name = "flex"
def refuse(request: Request): return "not written yet"
def run(request): raise AssertionError
