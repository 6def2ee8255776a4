"""paged_edu: PagedAttention and the serving system around it (Kwon et al., SOSP 2023), to learn from and to serve small models with.

>>> from paged_edu import LLM, SamplingParams
>>> llm = LLM("tiny-shakespeare")
>>> llm.generate("JULIET:", SamplingParams(max_tokens=60))[0].outputs[0].text

The names below load when they are first used, so that ``import paged_edu`` is instant and needs neither torch nor a GPU.
"""
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checks import UnsupportedError as UnsupportedError
    from .config import EngineConfig as EngineConfig
    from .engine.async_engine import AsyncEngine as AsyncEngine
    from .engine.engine import Engine as Engine
    from .engine.llm import LLM as LLM
    from .engine.output_stream import RequestFailedError as RequestFailedError
    from .engine.outputs import CompletionOutput as CompletionOutput
    from .engine.outputs import RequestOutput as RequestOutput
    from .sampling.beam import BeamSearchParams as BeamSearchParams
    from .sampling.logprobs import Logprob as Logprob
    from .sampling.params import SamplingParams as SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "engine.llm", "Engine": "engine.engine", "EngineConfig": "config", "SamplingParams": "sampling.params",
    "BeamSearchParams": "sampling.beam", "RequestOutput": "engine.outputs", "CompletionOutput": "engine.outputs", "UnsupportedError": "checks",
    "Logprob": "sampling.logprobs", "AsyncEngine": "engine.async_engine", "RequestFailedError": "engine.output_stream",
}
__all__ = [
    "LLM", "AsyncEngine", "BeamSearchParams", "CompletionOutput", "Engine", "EngineConfig", "Logprob", "RequestFailedError", "RequestOutput",
    "SamplingParams", "UnsupportedError", "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
