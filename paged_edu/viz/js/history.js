// What each request did in every step of a trace, and the branches that it had, as paged_edu/trace/history.py folds it. It grows with the trace.
import { RUNNING } from "./trace.js";

const PREFILL = "prefill", DECODE = "decode", STALLED = "stalled";

const known = new WeakMap();      // trace -> History: several views of one trace share it

// The lanes of a trace, in order of arrival: {requestId, arrival, numPromptTokens, maxTokens, arrived, spans, cached, branches, ended, reason}.
// A span is {kind, first, tokens: one number a step}. They belong to the history: read only.
export function lanesOf(trace) {
  let history = known.get(trace);
  if (!history || history.start !== trace.firstStep) known.set(trace, history = new History(trace));
  history.catchUp();
  return history.lanes;
}

// {kind, tokens} of a lane's step; null if it was not there.
export function laneAt(lane, step) {
  for (let i = lane.spans.length - 1; i >= 0; i--) {
    const { kind, first, tokens } = lane.spans[i];
    if (first <= step && step < first + tokens.length) return { kind, tokens: tokens[step - first] };
  }
  return null;
}

const lastOf = (list) => list[list.length - 1];

function put(lane, step, kind, tokens) {
  const end = (span) => span.first + span.tokens.length - 1;
  let span = lastOf(lane.spans);
  if (span && end(span) === step) {
    span.tokens.pop();
    if (!span.tokens.length) lane.spans.pop();
    span = lastOf(lane.spans);
  }
  if (span && span.kind === kind && end(span) === step - 1) span.tokens.push(tokens);
  else lane.spans.push({ kind, first: step, tokens: [tokens] });
}

class History {
  constructor(trace) {
    Object.assign(this, { trace, start: trace.firstStep, step: trace.firstStep, taken: 0, state: trace.begin(), lanes: [], now: new Map(), committed: true });
    for (const id of this.state.sequences.keys()) this.#branch(id);
  }

  catchUp() {
    for (;;) {
      const events = this.trace.events(this.step);
      while (this.taken < events.length) this.#take(events[this.taken++]);
      if (this.step >= this.trace.lastStep) return;
      this.step += 1;
      this.taken = 0;
    }
  }

  #branch(seqId, parent = null) {
    const { state } = this, id = state.seq(seqId).requestId;
    if (!this.now.has(id)) {
      const { arrival, numPromptTokens, maxTokens } = state.request(id);
      const lane = { requestId: id, arrival, numPromptTokens, maxTokens, arrived: state.step, spans: [], cached: [], branches: [], ended: null, reason: "" };
      this.now.set(id, lane);
      this.lanes.push(lane);
      this.lanes.sort((a, b) => a.arrival - b.arrival);
    }
    this.now.get(id).branches.push({ seqId, parent, born: state.step, ended: null, reason: "", output: [] });
  }

  #take(event) {
    const { state, now } = this, [name, ...fields] = event;
    if (name === "StepScheduled") this.#scheduled(...fields);
    else if (name === "TokensWritten") this.committed = true;
    else if (name === "RequestAdmitted") now.get(fields[0]).cached.push([state.step, fields[1], fields[2]]);
    else if (name === "SequenceFinished") this.#ended(fields[0], fields[1], fields[3] === "kv_pool" ? "kv_pool" : fields[2]);
    else if (name === "RequestFinished") {
      now.get(fields[0]).ended = state.step;
      now.delete(fields[0]);
    }
    state.apply(event);
    if (name === "RequestAdded") this.#branch(fields[1]);
    else if (name === "SequenceForked") this.#branch(fields[2], fields[1]);
    else if (name === "Recovered") this.#recovered();
  }

  #scheduled(step, tokens) {
    const { state } = this, count = new Map(), kinds = new Map();
    this.committed = false;
    for (const [seqId, number] of Object.entries(tokens)) {
      const seq = state.seq(Number(seqId)), id = seq.requestId;
      const decodes = seq.numComputed === seq.tokens.length - 1 && seq.numComputed >= state.request(id).numPromptTokens;
      count.set(id, (count.get(id) ?? 0) + number);
      if (!decodes || !kinds.has(id)) kinds.set(id, decodes ? DECODE : PREFILL);
    }
    for (const [id, request] of state.requests) {
      put(this.now.get(id), step, kinds.get(id) ?? (request.status === RUNNING ? STALLED : request.status), count.get(id) ?? 0);
    }
  }

  #ended(id, seqId, reason) {
    const lane = this.now.get(id), branch = lastOf(lane.branches.filter((b) => b.seqId === seqId));
    Object.assign(branch, { ended: this.state.step, reason, output: this.state.seq(seqId).tokens.slice(lane.numPromptTokens) });
    if (reason !== "pruned") lane.reason = reason;
  }

  #recovered() {
    const { state, now } = this;
    for (const [id, lane] of [...now]) {
      if (state.requests.has(id)) continue;
      lane.ended = state.step;
      now.delete(id);
    }
    for (const [id, request] of state.requests) if (now.has(id) && !this.committed) put(now.get(id), state.step, request.status, 0);
    for (const lane of now.values()) for (const b of lane.branches) if (b.ended === null && !state.sequences.has(b.seqId)) b.ended = state.step;
    for (const [seqId, seq] of state.sequences) if (!now.get(seq.requestId)?.branches.some((b) => b.seqId === seqId)) this.#branch(seqId);
    this.committed = true;
  }
}
