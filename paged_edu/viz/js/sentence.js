// One sentence that says what happened in a step, word for word as paged_edu/viz/sentence.py says it (a test compares the two).
import { PREEMPTED, SWAPPED, WAITING } from "./trace.js";
import { letter } from "./palette.js";

export function counted(number, noun, plural = `${noun}s`) { return `${number} ${number === 1 ? noun : plural}`; }

// "31.3 %" of 5 and 16: one decimal, half a tenth rounded up, as in paged_edu/words.py.
export function percent(part, whole) {
  const tenths = Math.floor((2000 * part + whole) / (2 * whole));
  return `${Math.floor(tenths / 10)}.${tenths % 10} %`;
}

// What happened in `step` of a trace, e.g. "step 4: C preempted, 2 blocks freed; 20 tokens computed".
export function stepSentence(trace, step) {
  const happened = trace.events(step);
  if (step === trace.firstStep) {                           // what the trace begins with: a snapshot, not a step
    const here = trace.at(step), waiting = here.withStatus(WAITING, PREEMPTED, SWAPPED).length;
    return `step ${step}: the recording starts here; ${counted(here.requests.size - waiting, "request")} running, ${waiting} waiting`;
  }
  const before = trace.at(step - 1);
  const letters = new Map([...before.requests].map(([id, r]) => [id, letter(r.arrival)]));
  const parts = [...left(happened, letters, before), ...swapped(happened, letters, before), ...admitted(happened, letters, before), ...memory(happened), ...arrived(happened, before.numArrived)];
  return `step ${step}: ${parts.length ? parts.join("; ") : "nothing ran"}`;
}

function of(happened, name) { return happened.filter((event) => event[0] === name); }

function left(happened, letters, before) {
  const freed = new Map();
  for (const [, seqId, blocks] of of(happened, "BlocksFreed")) {
    const owner = before.sequences.get(seqId)?.requestId;
    if (owner !== undefined) freed.set(owner, (freed.get(owner) ?? 0) + blocks.length);
  }
  const parts = [];
  const preempted = of(happened, "RequestPreempted").filter(([, , , mode]) => mode !== "swap");
  for (const [word, who] of [["preempted", preempted], ["finished", of(happened, "RequestFinished")]]) {
    const ids = who.map(([, id]) => id).filter((id) => letters.has(id));
    if (ids.length) {
      const sum = ids.reduce((total, id) => total + (freed.get(id) ?? 0), 0);
      parts.push(`${names(ids.map((id) => letters.get(id)))} ${word}, ${counted(sum, "block")} freed`);
    }
  }
  const alone = of(happened, "PoolExhausted").map(([, id]) => letters.get(id) ?? id);
  if (alone.length) parts.push(`${names(alone)} filled the whole pool alone and had to end`);
  return parts;
}

function swapped(happened, letters, before) {
  const owner = (seqId) => before.sequences.get(seqId)?.requestId;
  const parts = [];
  for (const [name, words, where, field] of [["BlocksSwappedOut", "swapped out", "to host memory", 2], ["BlocksSwappedIn", "swapped in", "back from host memory", 3]]) {
    const events = of(happened, name).filter(([, id]) => owner(id) !== undefined);
    const who = [...new Set(events.map(([, id]) => owner(id)))].map((id) => letters.get(id));
    const blocks = new Set(events.flatMap((event) => event[field]));          // a block that several branches share goes once
    if (who.length) parts.push(`${names(who)} ${words}, ${counted(blocks.size, "block")} ${where}`);
  }
  return parts;
}

function admitted(happened, letters, before) {
  const back = new Set(of(happened, "BlocksSwappedIn").map(([, id]) => before.sequences.get(id)?.requestId));
  const who = of(happened, "RequestAdmitted").filter(([, id]) => letters.has(id) && !back.has(id)).map(([, id]) => letters.get(id));
  return who.length ? [`${names(who)} admitted`] : [];
}

function memory(happened) {
  const taken = of(happened, "BlocksAllocated").reduce((total, [, , blocks]) => total + blocks.length, 0);
  const copied = of(happened, "BlockCopied").length;
  const computed = of(happened, "StepScheduled").reduce((total, [, , tokens]) => total + Object.values(tokens).reduce((a, b) => a + b, 0), 0);
  return [
    ...(taken ? [`${counted(taken, "block")} taken`] : []),
    ...(copied ? [`${counted(copied, "block")} copied before a write`] : []),
    ...(computed ? [`${counted(computed, "token")} computed`] : []),
  ];
}

function arrived(happened, numArrived) {
  const fresh = of(happened, "RequestAdded").length;
  return fresh ? [`${names(Array.from({ length: fresh }, (_, i) => letter(numArrived + i)))} arrived`] : [];
}

// "A", "A and B", "A, B and C"; from five on "A, B, C and 4 others".
export function names(letters) {
  if (letters.length > 4) return `${letters.slice(0, 3).join(", ")} and ${letters.length - 3} others`;
  return [letters.slice(0, -1).join(", "), letters[letters.length - 1]].filter(Boolean).join(" and ");
}
