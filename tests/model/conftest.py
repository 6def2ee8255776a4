"""Put tests/ on the path, for the helpers in batches.py."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
