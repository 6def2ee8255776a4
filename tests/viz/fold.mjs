// Folds the traces on standard input and says where it differs from what Python says. One process for all traces; see test_js_fold.py.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const js = pathToFileURL(process.argv[2] + "/");
const { Trace, EVENT_NAMES } = await import(new URL("trace.js", js));
const { stepSentence } = await import(new URL("sentence.js", js));
const { memoryReport } = await import(new URL("memory.js", js));
const { lanesOf } = await import(new URL("history.js", js));
const { layOut } = await import(new URL("layout.js", js));
const forks = await import(new URL("forks.js", js));
const fragmentation = await import(new URL("fragmentation.js", js));
const timeline = await import(new URL("timeline.js", js));
const prefix = await import(new URL("prefix.js", js));
const palette = await import(new URL("palette.js", js));

function wire(s) {
  return {
    step: s.step, num_arrived: s.numArrived,
    requests: [...s.requests].map(([id, r]) => [id, r.arrival, r.numPromptTokens, r.maxTokens, r.status, r.numPreemptions]),
    sequences: [...s.sequences].map(([id, q]) => [id, q.requestId, q.tokens, q.numComputed, q.blocks, q.cpuBlocks, q.reserved, q.capacity]),
    scheduled: [...s.scheduled].sort((a, b) => a[0] - b[0]), entries: [...s.entries].map(([block, e]) => [block, e.entry, e.parent, e.tokens, e.salt]),
    released: [...s.released], evicted: s.evicted, entered_by: [...s.enteredBy].sort((a, b) => a[0] - b[0]),
    num_finished: s.numFinished, num_preemptions: s.numPreemptions, num_copies: s.numCopies, num_swapped_out: s.numSwappedOut,
    blocks: s.blocks().map((b) => [b.owners, b.fill, b.logical, b.cached, b.reservedBy]),
    host: s.hostBlocks().map((b) => b.block), cached: s.cachedBlocks(),
    layout: layOut(new Map([...s.sequences].filter(([, q]) => q.blocks.length).map(([id, q]) => [id, q.blocks])), 5),
    prefix: [prefix.sections(s).map(([salt, paths]) => [salt, [...paths]]), prefix.lost(s), [...prefix.users(s)].sort((a, b) => a[0] - b[0]), prefix.headline(s)],
    memory: Object.values(memoryReport(s)),
    written: [...s.justWritten()].map(([block, [first, stop]]) => [block, first, stop]).sort((a, b) => a[0] - b[0]),
  };
}

const wireLane = (lane) => [
  lane.requestId, lane.arrival, lane.numPromptTokens, lane.maxTokens, lane.arrived, lane.ended, lane.reason, lane.cached,
  lane.spans.map((span) => [span.kind, span.first, span.tokens]), lane.branches.map((b) => [b.seqId, b.parent, b.born, b.ended, b.reason, b.output]),
];

const problems = [];
function same(where, got, wanted) {
  if (JSON.stringify(got) !== JSON.stringify(wanted)) problems.push(`${where}\n got    ${JSON.stringify(got)}\n wanted ${JSON.stringify(wanted)}`);
}

const input = JSON.parse(readFileSync(0, "utf8"));
let steps = 0;
input.traces.forEach(({ header, events, states, sentences, lanes, words, file }, number) => {
  const whole = file ? Trace.parse(file, 5) : new Trace(header, events, 5);
  const bit = new Trace(header, [], 7);                     // as events come from a kernel: a few at a time
  for (let i = 0; i < events.length; i += 3) {
    bit.push(events.slice(i, i + 3));
    if (i % 5 === 0) lanesOf(bit);                          // a history grows with its trace
    bit.at(bit.lastStep);                                   // the newest step is not over when it is read
  }
  same(`trace ${number}: the newest step`, wire(bit.at(bit.lastStep)), states[states.length - 1]);
  for (const trace of [whole, bit]) {
    const first = trace.firstStep, last = trace.lastStep;
    same(`trace ${number}: steps`, [first, last - first + 1], [header.first_step, states.length]);
    const order = [];
    for (let step = first; step <= last; step++) order.push(step);
    for (let step = last; step >= first; step--) order.push(step);
    for (let i = 0; i < 2 * states.length; i++) order.push(first + ((i * 7919) % states.length));      // here and there
    for (const step of order) {
      same(`trace ${number}, step ${step}`, wire(trace.at(step)), states[step - first]);
      steps += 1;
    }
    order.filter((_, i) => i % 7 === 0).forEach((step) => {                       // the words of the views
      const state = trace.at(step), found = forks.family(trace, state, step), all = lanesOf(trace);
      same(`trace ${number}, words of step ${step}`, [
        forks.headline(found), found ? forks.happened(found, step) : "", fragmentation.headline(memoryReport(state)), fragmentation.numbers(memoryReport(state)),
        prefix.hits(all, state), all.map((lane) => timeline.told(lane, step)[0]),
      ], words[step - first]);
    });
    same(`trace ${number}: lanes`, lanesOf(trace).map(wireLane), lanes);
    states.forEach((_, i) => same(`trace ${number}, sentence of step ${first + i}`, stepSentence(trace, first + i), sentences[i]));
    const copy = trace.at(first).copy();
    trace.at(last);
    same(`trace ${number}: a copy is independent`, wire(copy), states[0]);
  }
});
same("event names", [...EVENT_NAMES].sort(), input.names);
same("palette", Array.from({ length: 60 }, (_, i) => Object.values(palette.look(i))), input.looks);
same("constants", [palette.HUES, palette.HATCHES, palette.OUTLINE, Object.values(palette.PARTS)], input.constants);
for (const bad of input.refused) {
  let refused = false;
  try { new Trace({ num_blocks: 4, block_size: 4, step: 0, num_arrived: 0 }, bad); } catch { refused = true; }
  if (!refused) problems.push(`not refused: ${JSON.stringify(bad)}`);
}
console.log(JSON.stringify({ steps, problems: problems.slice(0, 5), count: problems.length }));
