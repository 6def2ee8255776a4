"""Puts the book's extension on the path, as Jupyter Book does, and the helpers of this folder (pytest's importlib mode does not)."""
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "book" / "_ext"), str(HERE)]
