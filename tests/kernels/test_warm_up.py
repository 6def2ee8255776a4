"""No request waits for a kernel to be compiled: what steps launch, `graphs.warm_up` has launched. Seen without a GPU, on tensors without memory.

In a process of its own, whose triton does not interpret: an interpreted kernel has no variants.
"""
import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

PROGRAM = """
import json, sys
import torch
import paged_edu.kernels.split
from paged_edu.attention import triton
from paged_edu.attention.cache import KVCache
from paged_edu.attention.metadata import AttentionMetadata
from paged_edu.core.plan import Copy
from paged_edu.engine.graphs import warm_up
from paged_edu.kernels.aot import launches

heads, kv_heads, head_dim, dtype, window, processors = json.loads(sys.argv[1])
paged_edu.kernels.split.multiprocessors = lambda device: processors
numbers, longest = getattr(torch, dtype if dtype != "int8" else "float16"), 4096
cache = KVCache(1, 100, kv_heads, 16, head_dim, getattr(torch, dtype), "meta", copy_pages=triton.copy_pages)

class Model:
    def __call__(self, ids, positions, cache, meta, attend):
        q, k, v = (torch.empty(len(ids), n, head_dim, dtype=numbers, device="meta") for n in (heads, kv_heads, kv_heads))
        return attend(q, k, v, cache[0], meta, window, 0.1)

    def logits(self, hidden):
        return hidden

def variant(launch):
    # What triton makes a kernel of its own of: constants, options, types, and integers that are 1 or a multiple of 16.
    found = [launch.name, sorted(launch.constants.items()), sorted(launch.options.items())]
    for parameter, value in zip(launch.kernel.params, launch.arguments):
        if isinstance(value, torch.Tensor):
            found.append(str(value.dtype))
        elif isinstance(value, int) and not parameter.do_not_specialize:
            found.append(1 if value == 1 else "16" if value % 16 == 0 else "int")
        else:
            found.append(type(value).__name__)
    return json.dumps(found)

def step(lengths, longest_context):
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    empty = lambda n, kind: torch.empty(n, dtype=kind, device="meta")
    meta = AttentionMetadata(
        slot_mapping=empty(starts[-1], torch.int64), query_start_loc=empty(len(starts), torch.int32), seq_lens=empty(len(lengths), torch.int32),
        block_tables=torch.empty(len(lengths), -(-longest_context // 16), dtype=torch.int32, device="meta"), block_size=16,
        host_query_start_loc=tuple(starts), host_seq_lens=(longest_context,) * len(lengths), max_query_len=max(lengths),
        max_seq_len=longest_context, all_written=False,
    )
    ids = empty(starts[-1], torch.int64)
    Model()(ids, ids, cache, meta, triton.attend)

def steps():
    for context in (9, 50, 500, 1000, 2000, longest):
        for count in (1, 2, 3, 7, 16, 33, 64):
            for queries in range(1, 10):
                step([queries] * count, context)
            step([1] * count + [9], context)
    step([100, 1, 7], 1000)
    for count in range(1, 8):
        cache.copy_blocks([Copy(0, 1 + i) for i in range(count)])

warmed = {variant(launch) for launch in launches(
    lambda: warm_up(Model(), cache, triton.attend, torch.device("meta"), 64, longest, 2048), 90)}
used = {variant(launch) for launch in launches(steps, 90)}
print(json.dumps({"kernels": sorted({json.loads(v)[0] for v in used}), "missing": sorted(used - warmed)}))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="triton has no wheels for this system")
@pytest.mark.parametrize("model", [
    (32, 8, 128, "bfloat16", None, 132), (28, 4, 128, "float16", None, 40), (9, 3, 64, "int8", None, 132), (40, 40, 128, "float32", None, 132),
    (32, 8, 128, "bfloat16", 1024, 132), (8, 1, 256, "int8", None, 8),
], ids=lambda model: "-".join(map(str, model)))
def test_what_steps_launch_was_compiled_at_the_start(model):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(model)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["kernels"] == ["copy_kernel", "merge_kernel", "split_kernel", "unified_kernel", "write_kernel"]
    assert found["missing"] == []
