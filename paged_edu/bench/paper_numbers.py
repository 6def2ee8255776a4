"""The paper's printed numbers beside which `paged-edu bench paper` puts its own; those of Fig. 2, 13 and of parallel samples are in `memory`.

From Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023, arXiv:2309.06180: read from the
text (T), or from the vector paths of a figure (F). OPT-13B on an A100 with 40 GB.
"""
from __future__ import annotations

from .memory import PAPER_SHARING

FIG12_RATES = {"orca-max": 0.525, "orca-pow2": 0.774, "orca-oracle": 1.099, "paged": 1.929}
"""Requests a second at which the normalized latency crosses 0.5 s/token, ShareGPT (Fig. 12a, F)."""

FIG15 = {("sampling", n): saved for n, saved in PAPER_SHARING.items()} | {("beam", 2): 0.3756, ("beam", 4): 0.5313, ("beam", 6): 0.5516}
"""Blocks saved by sharing, Alpaca (§6.3, T)."""

FIG18B = {1: 2.301, 2: 1.945, 4: 1.976, 8: 0.568, 16: 0.085, 32: 0.069, 64: 0.086, 128: 0.159}
"""Block size -> normalized latency [s/token], ShareGPT, at a fixed rate that the paper does not name (F)."""

FIG19A = {
    1: (36.3, 82.0, 55.5), 2: (37.5, 53.6, 35.6), 4: (36.9, 35.1, 25.9), 8: (38.8, 26.0, 21.1), 16: (38.6, 21.6, 18.5), 32: (39.0, 19.3, 17.3),
    64: (38.3, 18.2, 16.7), 128: (38.4, 17.6, 16.3),
}
"""Block size -> recompute, swap in, swap out [ms] of a sequence whose length the paper does not name (F)."""
