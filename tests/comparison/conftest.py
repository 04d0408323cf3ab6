"""The script of the study and its helpers can be imported as the script itself imports them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
