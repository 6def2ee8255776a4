"""One layer of a model, line by line: the shapes of a prefill and of a decode step, and the way to its cache and back (Paper §2.1, §4.3).

The shapes are not written down here: the model that `ModelSpec` describes is built without memory (torch's meta device), it runs both steps, and what
comes out of each part is noted. So a model of any size can be looked at, and no weights are needed.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..checks import integer
from ..words import counted

if TYPE_CHECKING:                                           # torch is imported when a walk is made
    from ..model.spec import CausalLM, ModelSpec

TABLE, NUM_BLOCKS, BLOCK_SIZE = (7, 1), 8, 4
"""The pool of the picture, and the block table of its sequence."""
MOST_TOKENS = len(TABLE) * BLOCK_SIZE - 1
"""Of a prefill, so that the decoded token has a slot."""
INTO, OUT_OF = "into the pool", "out of the pool"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One line of the layer, as a step of the walk."""

    step: int
    code: str
    """As in the model's file, without what is not about shapes."""
    why: str
    """What the line does, in a sentence or two."""
    prefill: str
    decode: str
    """The shapes that come out of it, in the prefill and in the decode step."""
    pool: str = ""
    """`INTO`, `OUT_OF`, or "" for a line that knows nothing of the cache."""


@dataclass(frozen=True, eq=False)
class LayerWalk:
    """All lines of a layer. Stands in for an `EventLog` where a view plays it."""

    name: str
    lines: tuple[LayerLine, ...]
    num_tokens: int
    """Of the prefill; the decode step computes the one after them."""

    first_step = 0

    @property
    def last_step(self) -> int:
        return len(self.lines) - 1

    def replay(self, step: int) -> LayerLine:
        return self.lines[step]


@dataclass(frozen=True, eq=False)
class _Shapes:
    """What one step's run through layer 0 gave: the output of each part by name, and what attention was handed."""

    parts: dict[str, Shape]
    q: Shape
    kv: Shape
    context: int

    def __getitem__(self, part: str) -> str:
        return shown(self.parts[part])

    @property
    def read(self) -> str:
        return shown((self.kv[1], self.context, self.kv[2]))

    @property
    def weights(self) -> str:
        return shown((self.q[1], self.q[0], self.context))


def shown(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def layer_walk(name: str, spec: ModelSpec, num_tokens: int = 5) -> LayerWalk:
    """Walk through a layer of the model called ``name``. Raises ValueError for an architecture without a walk, or more tokens than the picture "
    "holds."""
    integer("num_tokens", num_tokens, 1, MOST_TOKENS)
    from ..model.gpt2 import GPT2
    from ..model.llama import Llama
    from ..model.loader import ARCHITECTURES

    architecture = ARCHITECTURES.get(spec.architecture)
    told = next((lines for kind, lines in ((GPT2, _gpt2), (Llama, _llama)) if architecture is not None and issubclass(architecture, kind)), None)
    if architecture is None or told is None:
        raise ValueError(f"{name} is a {spec.architecture}; there are walks through {', '.join(ARCHITECTURES)}")
    prefill, decode = (_run(architecture, spec, start, count) for start, count in ((0, num_tokens), (num_tokens, 1)))
    return LayerWalk(name, tuple(LayerLine(i, *line) for i, line in enumerate(told(spec, prefill, decode))), num_tokens)


def slot(position: int) -> int:
    """Where the picture's sequence has a position."""
    return TABLE[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def _run(architecture: type[CausalLM], spec: ModelSpec, start: int, count: int) -> _Shapes:
    import torch

    from ..attention.cache import KVCache
    from ..attention.metadata import build_input
    from ..core.plan import ScheduledSeq

    with torch.device("meta"):
        model: Any = architecture(spec)
    model.to("meta")                                        # its buffers are numbers, computed on the CPU
    block = next(iter(model.h if hasattr(model, "h") else model.layers))
    parts: dict[str, Shape] = {}
    attended: list[tuple[Shape, Shape, int]] = []

    def note(part: str) -> Callable[..., None]:
        return lambda module, args, out: parts.update({part: tuple(out.shape)})

    for part, module in block.named_modules():
        if part:
            module.register_forward_hook(note(part))
    block.register_forward_pre_hook(lambda module, args: parts.update({"x": tuple(args[0].shape)}))

    def attend(q: Any, k: Any, v: Any, cache: Any, meta: Any, window: Any, scale: float) -> Any:
        attended.append((tuple(q.shape), tuple(k.shape), meta.host_seq_lens[0]))
        return torch.empty_like(q)

    item = ScheduledSeq("A", 0, 0, (0,) * count, start, tuple(map(slot, range(start, start + count))), TABLE, 0, 1)
    batch = build_input([item], BLOCK_SIZE, "meta")
    cache = KVCache(spec.num_layers, NUM_BLOCKS, spec.num_kv_heads, BLOCK_SIZE, spec.head_dim, torch.float32, "meta")
    model(batch.input_ids, batch.positions, cache, batch.meta, attend)
    return _Shapes(parts, *attended[0])


_Line = tuple[str, ...]


def _attention(spec: ModelSpec, prefill: _Shapes, decode: _Shapes) -> list[_Line]:
    """The four lines that are `attend`'s: both architectures have the same ones."""
    group = spec.num_heads // spec.num_kv_heads
    last = prefill.context - 1
    which = f"Query head h reads KV head h // {group}, so {group} heads read the same keys." if group > 1 else "Each query head has keys of its own."
    return [
        ("write(k, v, slots)", f"The only write: the new keys and values go into their slots, those of {counted(prefill.kv[0], 'token')} in the "
         f"prefill (positions 0 to {last}), of one in the decode step (position {last + 1}).", shown(prefill.kv), shown(decode.kv), INTO),
        ("K, V = read(block_table)",
         f"The only read: all tokens so far, through the block table {list(TABLE)}. The decode step finds what the prefill "
         "left, and its own token.", prefill.read, decode.read, OUT_OF),
        ("weights = softmax(q · K)", f"A row for each query, a column for each token it could see; what comes after it is masked. {which}",
         prefill.weights, decode.weights),
        ("weights · V", "The weighted mean of the values, for each query head. From here on no token looks at another one.",
         shown(prefill.q), shown(decode.q)),
    ]


def _gpt2(spec: ModelSpec, prefill: _Shapes, decode: _Shapes) -> list[_Line]:
    def both(part: str) -> tuple[str, str]:
        return prefill[part], decode[part]

    return [
        ("x = wte(ids) + wpe(positions)",
         "What comes into the first layer: a row a token, which says what the token is and where it stands.", *both("x")),
        ("h = ln_1(x)", "Each row for itself: its mean subtracted, its size made 1, then a weight and a bias for each number.", *both("ln_1")),
        ("c_attn(h)", "One matrix for queries, keys and values: three times as wide.", *both("attn.c_attn")),
        ("q, k, v = chunk(3)", f"Cut into three, and each into {spec.num_heads} heads. The position is in these numbers already: it came with x.",
         shown(prefill.q) + " ×3", shown(decode.q) + " ×3"),
        *_attention(spec, prefill, decode),
        ("x = x + c_proj(...)", "The heads side by side again, mixed by a matrix, and added to what came in.", *both("attn.c_proj")),
        ("h = ln_2(x)", "The second half begins like the first.", *both("ln_2")),
        ("gelu(c_fc(h))", "The feed-forward network widens each row, each token for itself.", *both("mlp.c_fc")),
        ("x = x + c_proj(...)", "And narrows it again. What comes out has the shape of what came in: the next layer does the same.", *both("mlp")),
    ]


def _llama(spec: ModelSpec, prefill: _Shapes, decode: _Shapes) -> list[_Line]:
    def both(part: str) -> tuple[str, str]:
        return prefill[part], decode[part]

    projected, turned = ([f"{shown(step.q)}, {shown(step.kv)}{end}" for step in (prefill, decode)] for end in (" ×2", ""))
    return [
        ("x = embed_tokens(ids)",
         "What comes into the first layer: a row a token. It says what the token is, and not yet where it stands.", *both("x")),
        ("h = input_layernorm(x)", "Each row for itself: its size made 1, then a weight for each number.", *both("input_layernorm")),
        ("q, k, v = q_proj(h), k_proj(h), v_proj(h)",
         f"{counted(spec.num_heads, 'query head')}, {counted(spec.num_kv_heads, 'head')} of keys and of values: what the cache keeps is that much "
         f"smaller.",
         *projected),
        ("q, k = rotate(q), rotate(k)", "Here a token learns its position: queries and keys are turned by its angle. Values are not.", *turned),
        *_attention(spec, prefill, decode),
        ("x = x + o_proj(...)", "The heads side by side again, mixed by a matrix, and added to what came in.", *both("self_attn.o_proj")),
        ("h = post_attention_layernorm(x)", "The second half begins like the first.", *both("post_attention_layernorm")),
        ("act(gate_proj(h)) * up_proj(h)", "The feed-forward network widens each row, each token for itself.", *both("mlp.up_proj")),
        ("x = x + down_proj(...)", "And narrows it again. What comes out has the shape of what came in: the next layer does the same.", *both("mlp")),
    ]


def told(line: LayerLine) -> str:
    """A line in one sentence: its code, its shapes, its way to the cache."""
    where = f", {line.pool}" if line.pool else ""
    return f"line {line.step}: {line.code}{where}: {line.prefill} in the prefill, {line.decode} in the decode step"
