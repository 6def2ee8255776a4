"""Cards and models as a few physical numbers, for the cost model. The paper's are marked; others serve to ask what a card would hold.

Peak rates and bandwidths are the makers' for dense float16. Link rates are one direction of the host link.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..checks import one_of

GIB = 2**30


@dataclass(frozen=True, slots=True)
class GPU:
    """One card."""

    name: str
    flops: float
    """Multiplications and additions a second at most, dense float16."""
    bandwidth: float
    """Bytes a second between its memory and its processors."""
    memory: float
    """Bytes."""
    link: float
    """Bytes a second to host memory."""


@dataclass(frozen=True, slots=True)
class Model:
    """One model, in float16 unless ``bytes_per_number`` says otherwise."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    num_parameters: float
    max_model_len: int
    bytes_per_number: int = 2
    family: str = "llama"
    """Whose tokenizer it has: the serving program's work with a request depends on it (`Constants.request_overhead`)."""

    @property
    def weight_bytes(self) -> float:
        return self.num_parameters * self.bytes_per_number

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers (Paper §3: 800 KB for OPT-13B)."""
        return 2 * self.num_layers * self.hidden_size // self.num_heads * self.num_kv_heads * self.bytes_per_number


GPUS = {gpu.name: gpu for gpu in (
    GPU("A100-40GB", 312e12, 1555e9, 40 * GIB, 32e9),       # the paper's
    GPU("A100-80GB", 312e12, 2039e9, 80 * GIB, 32e9),       # the paper's, for OPT-175B
    GPU("H100-80GB", 989e12, 3350e9, 80 * GIB, 64e9),
    GPU("H200-141GB", 989e12, 4800e9, 141e9, 64e9),
    GPU("L4-24GB", 121e12, 300e9, 24e9, 32e9),
    GPU("T4-16GB", 65e12, 320e9, 16e9, 16e9),
)}

MODELS = {model.name: model for model in (
    Model("opt-13b", 40, 5120, 40, 40, 12.85e9, 2048, family="opt"),
    Model("opt-66b", 64, 9216, 72, 72, 65.72e9, 2048, family="opt"),
    Model("opt-175b", 96, 12288, 96, 96, 174.6e9, 2048, family="opt"),
    Model("llama-13b", 40, 5120, 40, 40, 13.02e9, 2048),
    Model("llama-3-8b", 32, 4096, 32, 8, 8.03e9, 8192),
    Model("smollm2-135m", 30, 576, 9, 3, 0.1345e9, 8192),
)}


@dataclass(frozen=True, slots=True)
class Server:
    """A model on one or several cards, and the slots of KV cache that they leave."""

    model: Model
    gpu: GPU
    num_gpus: int
    num_slots: int


PAPER_SERVERS = {
    # Paper Table 1: memory for the KV cache over bytes of a token; it prints 15.7K, 9.7K and 60.1K slots.
    "opt-13b": Server(MODELS["opt-13b"], GPUS["A100-40GB"], 1, 15_728),
    "opt-66b": Server(MODELS["opt-66b"], GPUS["A100-40GB"], 4, 9_700),
    "opt-175b": Server(MODELS["opt-175b"], GPUS["A100-80GB"], 8, 60_100),
    "llama-13b": Server(MODELS["llama-13b"], GPUS["A100-40GB"], 1, 15_728),
}


def server(model: str, gpu: str, num_gpus: int = 1, utilization: float = 0.9) -> Server:
    """``model`` on ``num_gpus`` cards: weights first, the rest of ``utilization`` of their memory is KV cache.

    Raises ValueError for unknown names, and where nothing is left for a single slot.
    """
    one_of("--model", model, MODELS)
    one_of("--gpu", gpu, GPUS)
    chosen, card = MODELS[model], GPUS[gpu]
    left = num_gpus * card.memory * utilization - chosen.weight_bytes
    slots = int(left // chosen.kv_bytes_per_token)
    if slots < 1:
        raise ValueError(
            f"{model} takes {chosen.weight_bytes / GIB:.1f} GiB; {utilization:g} of {num_gpus} x {gpu} are "
            f"{num_gpus * card.memory * utilization / GIB:.1f} GiB: more cards, or a smaller model"
        )
    return Server(chosen, card, num_gpus, slots)
