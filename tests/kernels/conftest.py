"""Lets the kernels run where there is no GPU, and puts the helpers of this folder on the path (pytest's importlib mode does not).

With a CUDA device the same tests run the compiled kernels. Without one Triton's interpreter runs them on the CPU, which it must be told before
anything imports them: `triton.jit` looks when it decorates.
"""
import os
import sys
from pathlib import Path

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.insert(0, str(Path(__file__).parent))
