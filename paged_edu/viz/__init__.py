"""Pictures of the engine: a running one (`BlockPoolView`) and still ones (`pool_svg`), drawn from the events of the run itself.

Importing this package imports neither Jupyter nor plotly; what needs them asks for them when it is used.
"""
from .block_pool_view import BlockPoolView
from .palette import AUTO, DARK, LIGHT, Look, Theme, letter, look
from .sentence import step_sentence
from .still import Still
from .svg import pool_svg

__all__ = ["AUTO", "DARK", "LIGHT", "BlockPoolView", "Look", "Still", "Theme", "letter", "look", "pool_svg", "step_sentence"]
