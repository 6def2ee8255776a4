"""Pictures of the engine: a running one or a recording (`BlockPoolView`, `Views`), and still ones (`pool_svg`), drawn from the events of the run.

Importing this package imports neither Jupyter nor plotly; what needs them asks for them when it is used.
"""
from .attention_walk import AttentionWalk
from .block_pool_view import BlockPoolView
from .block_table_view import BlockTableView
from .engine_stepper import EngineStepper
from .fork_tree_view import ForkTreeView
from .fragmentation_view import FragmentationView
from .latency_curves import LatencyCurves
from .layer_stepper import LayerStepper
from .page import save_html
from .palette import AUTO, DARK, LIGHT, Look, Theme, letter, look
from .prefix_cache_view import PrefixCacheView
from .sentence import step_sentence
from .still import Still
from .svg import pool_svg
from .timeline_view import TimelineView
from .view import View
from .views import Views

__all__ = [
    "AUTO", "DARK", "LIGHT", "AttentionWalk", "BlockPoolView", "BlockTableView", "EngineStepper", "ForkTreeView", "FragmentationView",
    "LatencyCurves", "LayerStepper", "Look", "PrefixCacheView", "Still", "Theme", "TimelineView", "View", "Views", "letter", "look", "pool_svg",
    "save_html", "step_sentence",
]
