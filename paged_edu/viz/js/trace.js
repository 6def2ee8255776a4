// The fold of a run's events, as paged_edu/trace/state.py does it, and a trace that can be read at any step, forwards and backwards.
// An event is [name, field, ...], the JSON form of EventLog.save. tests/viz compares every state with Python's and with the manager's own.

export const WAITING = "waiting";
export const RUNNING = "running";
export const PREEMPTED = "preempted";
export const SWAPPED = "swapped";

const FIELDS = ["numFinished", "numPreemptions", "numCopies", "numSwappedOut"];

export class TraceState {
  constructor(numBlocks, blockSize, step = 0, numArrived = 0) {
    Object.assign(this, { numBlocks, blockSize, step, numArrived, numFinished: 0, numPreemptions: 0, numCopies: 0, numSwappedOut: 0 });
    this.requests = new Map();    // request id -> {arrival, numPromptTokens, maxTokens, status, numPreemptions}
    this.sequences = new Map();   // sequence id -> {requestId, tokens, numComputed, blocks, cpuBlocks, reserved, capacity}
    this.scheduled = new Map();   // sequence id -> tokens that it runs in this step
    this.entries = new Map();     // block that the prefix index knows -> {entry, parent, tokens, salt}
    this.released = new Set();    // of those, the ones that a table has dropped, by the last time that one did
    this.evicted = [];            // blocks whose text was overwritten in this step
    this.enteredBy = new Map();   // of those, block -> arrival number of the request whose text it holds
  }

  // The start of a trace: sizes, and the state in mid-run if the header has one.
  static from(header) {
    const state = new TraceState(header.num_blocks, header.block_size, header.step, header.num_arrived);
    const begun = header.state;
    if (begun) {
      for (const [id, ...fields] of begun.requests) state.requests.set(id, request(...fields));
      for (const [id, ...fields] of begun.sequences) state.sequences.set(id, sequence(...fields));
      state.scheduled = new Map(begun.scheduled);
      for (const [block, entry, parent, tokens, salt] of begun.entries) state.entries.set(block, { entry, parent, tokens, salt });
      state.released = new Set(begun.released);
      state.evicted = [...begun.evicted];
      state.enteredBy = new Map(begun.entered_by);
      state.numFinished = begun.num_finished;
      state.numPreemptions = begun.num_preemptions;
      state.numCopies = begun.num_copies;
      state.numSwappedOut = begun.num_swapped_out;
    }
    return state;
  }

  copy() {
    const twin = new TraceState(this.numBlocks, this.blockSize, this.step, this.numArrived);
    for (const name of FIELDS) twin[name] = this[name];
    for (const [id, r] of this.requests) twin.requests.set(id, { ...r });
    for (const [id, s] of this.sequences) twin.sequences.set(id, sequence(s.requestId, s.tokens, s.numComputed, s.blocks, s.cpuBlocks, s.reserved, s.capacity));
    twin.scheduled = new Map(this.scheduled);
    twin.entries = new Map(this.entries);
    twin.released = new Set(this.released);
    twin.evicted = [...this.evicted];
    twin.enteredBy = new Map(this.enteredBy);
    return twin;
  }

  // Advance by one event. Throws for a type that it does not know: a new event must say what it changes.
  apply([name, ...fields]) {
    const change = CHANGES[name];
    if (!change) throw new Error(`TraceState does not know the event ${name}`);
    change(this, ...fields);
  }

  forget(blocks) {
    for (const block of blocks) {
      this.entries.delete(block);
      this.enteredBy.delete(block);
      this.released.delete(block);
    }
  }

  // They were handed out and will hold something else.
  overwrite(blocks) {
    const known = blocks.filter((block) => this.entries.has(block));
    this.evicted.push(...known);
    this.forget(known);
  }

  // A table has dropped these, last block first: the head of a text is overwritten last.
  release(blocks) {
    for (const block of [...blocks].reverse()) {
      if (!this.entries.has(block)) continue;
      this.released.delete(block);
      this.released.add(block);
    }
  }

  // Blocks that the prefix index knows, in use or not.
  get entered() { return this.entries; }

  // Blocks that only the prefix index knows, in the order in which they will be overwritten.
  cachedBlocks() {
    const used = new Set();
    for (const seq of this.sequences.values()) for (const block of seq.blocks) used.add(block);
    return [...this.released].filter((block) => !used.has(block));
  }

  seq(id) {
    const found = this.sequences.get(id);
    if (!found) throw new Error(`no sequence ${id}`);
    return found;
  }

  request(id) {
    const found = this.requests.get(id);
    if (!found) throw new Error(`no request ${id}`);
    return found;
  }

  // Place of a sequence's request in the order of arrival.
  arrival(seqId) { return this.request(this.seq(seqId).requestId).arrival; }

  // Ids of the requests in one of the given states, in order of arrival.
  withStatus(...status) {
    const ids = [...this.requests].filter(([, r]) => status.includes(r.status));
    return ids.sort(([, a], [, b]) => a.arrival - b.arrival).map(([id]) => id);
  }

  // Every physical block, by id: {block, owners, fill, logical, cached, reservedBy}.
  blocks() {
    const found = Array.from({ length: this.numBlocks }, (_, block) => ({ block, owners: [], fill: 0, logical: null, cached: false, reservedBy: null }));
    for (const [id, seq] of this.sequences) for (const block of seq.reserved) found[block].reservedBy = id;
    for (const id of [...this.sequences.keys()].sort((a, b) => a - b)) {
      const seq = this.sequences.get(id);
      seq.blocks.forEach((block, index) => {
        const view = found[block];
        view.owners.push(id);
        view.fill = Math.max(view.fill, Math.min(this.blockSize, Math.max(0, seq.numComputed - index * this.blockSize)));
        view.logical ??= index;
      });
    }
    for (const view of found) view.cached = this.entries.has(view.block) && !view.owners.length;
    return found;
  }

  // Every block in host memory: {block, owners, logical, fill}, by id.
  hostBlocks() {
    const found = new Map();
    for (const [id, seq] of this.sequences) {
      seq.cpuBlocks.forEach((block, logical) => {
        if (!found.has(block)) found.set(block, { block, owners: [], logical, fill: 0 });
        const view = found.get(block);
        view.owners.push(id);
        view.fill = Math.max(view.fill, Math.min(this.blockSize, Math.max(0, seq.numComputed - logical * this.blockSize)));
      });
    }
    return [...found.values()].sort((a, b) => a.block - b.block);
  }

  // Slots that the current step wrote: block -> [first, stop).
  justWritten() {
    const size = this.blockSize, found = new Map();
    for (const [id, count] of this.scheduled) {
      const seq = this.sequences.get(id);
      if (!seq) continue;                                   // it finished in this step, and its blocks are free again
      const start = Math.max(0, seq.numComputed - count), stop = seq.numComputed;
      for (let i = Math.floor(start / size); i < Math.min(Math.ceil(stop / size), seq.blocks.length); i++) {
        found.set(seq.blocks[i], [Math.max(0, start - i * size), Math.min(size, stop - i * size)]);
      }
    }
    return found;
  }
}

function request(arrival, numPromptTokens, maxTokens, status = WAITING, numPreemptions = 0) {
  return { arrival, numPromptTokens, maxTokens, status, numPreemptions };
}

function sequence(requestId, tokens, numComputed = 0, blocks = [], cpuBlocks = [], reserved = [], capacity = null) {
  return { requestId, tokens: [...tokens], numComputed, blocks: [...blocks], cpuBlocks: [...cpuBlocks], reserved: [...reserved], capacity };
}

const CHANGES = {
  StepStarted(s, step) { Object.assign(s, { step, scheduled: new Map(), evicted: [] }); },
  StepScheduled(s, _, tokens) { s.scheduled = new Map(Object.entries(tokens).map(([id, n]) => [Number(id), n])); },
  RequestAdded(s, id, seqId, prompt, maxTokens) {
    if (s.requests.has(id) || s.sequences.has(seqId)) throw new Error(`request ${id} or sequence ${seqId} is there already`);
    s.requests.set(id, request(s.numArrived, prompt.length, maxTokens));
    s.sequences.set(seqId, sequence(id, prompt));
    s.numArrived += 1;
  },
  RequestAdmitted(s, id) { s.request(id).status = RUNNING; },
  RequestPreempted(s, id, _, mode = "recompute") {
    const request = s.request(id);
    request.status = mode === "swap" ? SWAPPED : PREEMPTED;
    request.numPreemptions += 1;
    s.numPreemptions += 1;
    if (mode === "swap") s.numSwappedOut += 1;
    else for (const seq of s.sequences.values()) if (seq.requestId === id) seq.numComputed = 0;
  },
  BlocksAllocated(s, id, blocks, capacity = null) {
    if (!blocks.every((block) => block >= 0 && block < s.numBlocks)) throw new Error(`blocks ${blocks} are not all in a pool of ${s.numBlocks}`);
    s.seq(id).blocks.push(...blocks);
    s.seq(id).capacity = capacity;
    s.overwrite(blocks);
  },
  BlocksReserved(s, id, blocks) { s.seq(id).reserved = [...blocks]; },
  RunMoved(s, id, blocks, capacity) { Object.assign(s.seq(id), { blocks: [...blocks], capacity }); },
  BlocksShared(s, id, blocks) {
    const seq = s.seq(id);
    seq.blocks = [...blocks];
    seq.numComputed = Math.min(blocks.length * s.blockSize, seq.tokens.length - 1);
  },
  BlocksEntered(s, id, blocks, entries, salt) {
    const seq = s.seq(id), size = s.blockSize;
    blocks.forEach((block, i) => {
      const start = seq.blocks.indexOf(block) * size, [entry, parent] = entries[i];
      s.entries.set(block, { entry, parent, tokens: seq.tokens.slice(start, start + size), salt });
      s.enteredBy.set(block, s.arrival(id));
    });
  },
  BlocksForgotten(s, blocks) { s.forget(blocks); },
  BlocksSwappedOut(s, id, cpuBlocks) {
    s.release(s.seq(id).blocks);
    Object.assign(s.seq(id), { blocks: [], cpuBlocks: [...cpuBlocks] });
  },
  BlocksSwappedIn(s, id, blocks, copied) {
    Object.assign(s.seq(id), { blocks: [...blocks], cpuBlocks: [] });
    s.overwrite(copied);
  },
  CpuBlocksFreed(s, id) { s.seq(id).cpuBlocks = []; },
  BlocksFreed(s, id, blocks) {
    const seq = s.seq(id), kept = seq.blocks.length - blocks.length;
    if (kept < 0 || blocks.some((block, i) => seq.blocks[kept + i] !== block)) {
      throw new Error(`sequence ${id} frees ${blocks} but its table is ${seq.blocks}`);
    }
    seq.blocks.length = kept;
    s.release(blocks);
    if (!kept) seq.capacity = null;
  },
  BlockCopied(s, id, logical, _, dst) {
    s.seq(id).blocks[logical] = dst;
    s.overwrite([dst]);
    s.numCopies += 1;
  },
  SequenceForked(s, name, parent, child) { s.sequences.set(child, sequence(name, s.seq(parent).tokens)); },
  TableForked(s, parent, child) {
    const source = s.seq(parent);
    Object.assign(s.seq(child), { blocks: [...source.blocks], numComputed: source.numComputed });
  },
  RunForked(s, parent, child, blocks, capacity) { Object.assign(s.seq(child), { blocks: [...blocks], numComputed: s.seq(parent).numComputed, capacity }); },
  TokensWritten(s, id, numComputed) { s.seq(id).numComputed = numComputed; },
  TokensSampled(s, id, tokens) { s.seq(id).tokens.push(...tokens); },
  SequenceFinished(s, _, id) {
    s.seq(id);
    s.sequences.delete(id);
  },
  RequestFinished(s, id) {
    s.request(id);
    s.requests.delete(id);
    s.numFinished += 1;
  },
  Recovered(s, step, numArrived, requests, sequences) {
    const left = new Set(requests.map(([id]) => id));
    for (const id of s.requests.keys()) if (!left.has(id)) s.numFinished += 1;
    for (const fields of requests) s.numPreemptions += fields[5] - (s.requests.get(fields[0])?.numPreemptions ?? 0);
    Object.assign(s, { step, numArrived, scheduled: new Map(), entries: new Map(), enteredBy: new Map(), released: new Set(), evicted: [] });
    s.requests = new Map(requests.map(([id, ...fields]) => [id, request(...fields)]));
    s.sequences = new Map(sequences.map(([id, name, tokens]) => [id, sequence(name, tokens)]));
  },
  PoolExhausted() {},                                       // the events of its end follow
};

export const EVENT_NAMES = Object.keys(CHANGES);

// Events by step, with a snapshot now and then: reading any step folds at most `snapshotEvery` steps, and the next one only its own events.
export class Trace {
  constructor(header, events = [], snapshotEvery = 32) {
    this.header = header;
    this.snapshotEvery = snapshotEvery;
    this.maxSteps = header.max_steps ?? 10000;
    this.newest = TraceState.from(header);
    this.everSwapped = [...this.newest.sequences.values()].some((seq) => seq.cpuBlocks.length);
    this.everForked = false;
    const whole = (header.first_step ?? header.step) === header.step;    // else the first event starts the first step
    this.chunks = [{ snapshot: this.newest.copy(), first: header.first_step ?? header.step, steps: whole ? [[]] : [] }];
    this.cursor = null;
    this.push(events);
  }

  // The text of a saved trace: a header, then one event a line.
  static parse(text, snapshotEvery) {
    const [header, ...events] = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
    if (header?.format !== "paged_edu trace 1") throw new Error("this is not a trace of paged_edu");
    return new Trace({ max_steps: Infinity, ...header }, events, snapshotEvery);
  }

  // The state before the events of the first step, for a fold of one's own.
  begin() { return this.chunks[0].snapshot.copy(); }

  get firstStep() { return this.chunks[0].first; }

  get lastStep() {
    const chunk = this.chunks[this.chunks.length - 1];
    return chunk.first + chunk.steps.length - 1;
  }

  push(events) {
    for (const event of events) {
      if (event[0] === "StepStarted" || (event[0] === "Recovered" && event[1] > this.lastStep)) this.#nextStep(event[1]);
      const chunk = this.chunks[this.chunks.length - 1];
      chunk.steps[chunk.steps.length - 1].push(event);
      this.newest.apply(event);
      this.everSwapped ||= event[0] === "BlocksSwappedOut";
      this.everForked ||= event[0] === "SequenceForked";
    }
  }

  #nextStep(step) {
    if (step !== this.lastStep + 1) throw new Error(`step ${step} after step ${this.lastStep}: events are missing`);
    let chunk = this.chunks[this.chunks.length - 1];
    if (chunk.steps.length >= this.snapshotEvery) {
      chunk = { snapshot: this.newest.copy(), first: step, steps: [] };
      this.chunks.push(chunk);
    }
    chunk.steps.push([]);
    while (this.chunks.length > 1 && this.lastStep - this.chunks[1].first + 1 >= this.maxSteps) this.chunks.shift();
  }

  #chunk(step) {
    if (!(step >= this.firstStep && step <= this.lastStep)) throw new Error(`step ${step} is not in the trace: ${this.firstStep} to ${this.lastStep}`);
    let low = 0, high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.chunks[middle].first <= step) low = middle;
      else high = middle - 1;
    }
    return this.chunks[low];
  }

  // The events from the start of `step` up to the start of the next one.
  events(step) {
    const chunk = this.#chunk(step);
    return chunk.steps[step - chunk.first];
  }

  // The state at the end of `step`. It belongs to the trace: read it before the next call, never change it.
  at(step) {
    const chunk = this.#chunk(step);
    if (step === this.lastStep) return this.newest;
    const stop = step - chunk.first + 1;
    if (this.cursor?.chunk !== chunk || this.cursor.next > stop) this.cursor = { chunk, next: 0, state: chunk.snapshot.copy() };
    const { state } = this.cursor;
    for (; this.cursor.next < stop; this.cursor.next++) for (const event of chunk.steps[this.cursor.next]) state.apply(event);
    return state;
  }
}
