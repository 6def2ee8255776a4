// What the slots hold, as paged_edu/trace/memory.py computes it: the parts of Paper Fig. 2, in slots of one token.

// Tokens that will be in the cache if the sequence runs to max_tokens; the last sampled one is never written.
export function longest(state, seq) {
  const request = state.request(seq.requestId);
  return Math.max(seq.tokens.length, request.numPromptTokens + request.maxTokens - 1);
}

// {total, tokens, reserved, internal, external, cached, sequences, saved, used}: the first is the sum of the four after it.
export function memoryReport(state) {
  const holding = [...state.sequences.values()].filter((seq) => seq.blocks.length), total = state.numBlocks * state.blockSize;
  return holding.some((seq) => seq.capacity !== null) ? contiguous(state, holding, total) : paged(state, holding, total);
}

function paged(state, holding, total) {
  const size = state.blockSize, now = new Map(), later = new Map();
  let entries = 0;
  for (const seq of holding) {
    const end = longest(state, seq);
    entries += seq.blocks.length;
    seq.blocks.forEach((block, i) => {
      const fill = (tokens) => Math.min(size, Math.max(0, tokens - i * size));
      now.set(block, Math.max(now.get(block) ?? 0, fill(seq.numComputed)));
      later.set(block, Math.max(later.get(block) ?? 0, fill(end)));
    });
  }
  let tokens = 0, reserved = 0;
  for (const [block, fill] of now) {
    tokens += fill;
    reserved += Math.max(0, later.get(block) - fill);
  }
  const used = now.size * size, cached = [...state.entries.keys()].filter((block) => !now.has(block)).length * size;
  return { total, tokens, reserved, internal: used - tokens - reserved, external: total - used, cached, sequences: holding.length, saved: entries - now.size, used: now.size };
}

function contiguous(state, holding, total) {
  let tokens = 0, reserved = 0, internal = 0, used = 0;
  for (const seq of holding) {
    const spares = Math.floor(seq.reserved.length / seq.blocks.length), end = Math.min(longest(state, seq), seq.capacity);
    tokens += seq.numComputed;
    reserved += Math.max(0, end - seq.numComputed) + end * spares;
    internal += seq.capacity - Math.max(end, seq.numComputed) + (seq.capacity - end) * spares;
    used += seq.blocks.length + seq.reserved.length;
  }
  return { total, tokens, reserved, internal, external: total - tokens - reserved - internal, cached: 0, sequences: holding.length, saved: 0, used };
}
