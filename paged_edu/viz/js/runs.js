// The run behind a point of LatencyCurves: its requests as bars over seconds, batch and queue, and what the memory holds.
import { h, s, setText, watchWidth } from "./dom.js";
import { nice, stepped } from "./axes.js";
import { fixed } from "./crossings.js";
import { OUTLINE, PARTS as HUES } from "./palette.js";

const LEFT = 44, RIGHT = 10;
const PARTS = [
  { field: "tokens", name: "token states", short: "tokens" }, { field: "reserved", name: "reservation", short: "reservation" },
  { field: "internal", name: "internal fragmentation", short: "internal" }, { field: "external", name: "external or free", short: "free" },
];
let made = 0;

// A pattern for a memory part; ids are ours alone in this page.
function pattern(id, field) {
  const ground = s("rect", { width: 8, height: 8, fill: HUES[field], "fill-opacity": field === "tokens" ? 1 : field === "reserved" ? 0.4 : 0.22 });
  const lines = { reserved: "M2 2h.01M6 6h.01", internal: "M-1 9L9 -1M-1 1L1 -1M7 9L9 7", external: "M-1 9L9 -1M-1 -1L9 9" }[field];
  const width = field === "reserved" ? 2.2 : field === "internal" ? 1.6 : 0.9;
  return s("pattern", { id: `${id}-${field}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, ground,
    lines ? s("path", { d: lines, stroke: field === "external" ? OUTLINE : HUES[field], "stroke-width": width, "stroke-linecap": "round", fill: "none" }) : null);
}

const label = (x, y, words, more = {}) => s("text", { x, y, "font-size": 12, fill: "var(--pe-muted)", ...more }, words);

function pill(x, y, words) {
  const wide = 6.6 * words.length + 12;
  return [s("rect", { x: x - wide / 2, y: y - 9, width: wide, height: 18, rx: 9, fill: "var(--pe-ground)" }),
    s("text", { x, y: y + 4.2, "text-anchor": "middle", "font-size": 12, "font-weight": 600, fill: "var(--pe-ink)" }, words)];
}

function axis(ticks, at, y, unit, wide) {
  return ticks.flatMap((tick, i) => [s("path", { d: `M${at(tick)} ${y}v5`, stroke: OUTLINE }),
    label(Math.min(at(tick), wide - 22), y + 18, i === ticks.length - 1 ? `${tick} ${unit}` : String(tick), { "text-anchor": "middle" })]);
}

// Returns {el, show(run, hue), destroy()}; `hint` says how to choose one.
export function runPanel(hint) {
  const id = `pe-run-${(made += 1)}-${Math.random().toString(36).slice(2, 7)}`;
  const said = h("div", { class: "pe-run-told", "aria-live": "polite" }), asked = h("div", { class: "pe-sub" }, hint);
  const [bars, queue, memory] = [["requests over seconds"], ["requests in the batch and in line over seconds"], ["memory parts over seconds"]].map(([name]) => {
    const caption = h("div", { class: "pe-note pe-key-list" }), picture = s("svg", { class: "pe-picture", role: "img", "aria-label": name });
    return { caption, picture };
  });
  const legend = h("div", { class: "pe-key-list" });
  const inside = h("div", { hidden: true }, ...[bars, queue, memory].flatMap(({ caption, picture }) => [caption, picture]), legend);
  const el = h("div", { class: "pe-run" }, asked, said, inside);
  let width = 0, run = null, hue = OUTLINE;
  function fit(part, height, children) {
    part.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    part.picture.setAttribute("width", width);
    part.picture.setAttribute("height", height);
    part.picture.replaceChildren(...children);
  }

  function drawBars() {
    const rows = run.requests, pitch = Math.max(4.6, Math.min(9, 184 / Math.max(1, rows.length))), bottom = 4 + pitch * rows.length;
    const first = rows.length ? Math.floor(rows[0][0]) : 0, last = Math.max(first + 1, ...rows.map((times) => times[times.length - 1]));
    const pace = nice(last - first)[1], begin = Math.ceil(first / pace), across = width - LEFT - RIGHT;
    const ticks = Array.from({ length: Math.floor(last / pace) - begin + 1 }, (_, i) => Number(((begin + i) * pace).toPrecision(6)));
    const at = (time) => LEFT + (across * (time - first)) / (last - first), children = [];
    rows.forEach((times, row) => {
      const y = 4 + row * pitch, high = pitch - (pitch > 5 ? 2 : 1.2);
      for (let i = 0; i + 1 < times.length; i++) {
        const x = at(times[i]), wide = at(times[i + 1]) - x;
        if (i % 2) children.push(s("rect", { x, y, width: Math.max(1, wide), height: high, fill: hue }));
        else if (wide > 0.8) children.push(s("rect", { x: x + 0.4, y: y + 0.4, width: wide - 0.8, height: high - 0.8, fill: "none", stroke: i ? "var(--pe-ink)" : hue, "stroke-width": 0.9 }));
      }
    });
    children.push(s("path", { d: `M${LEFT} ${bottom + 2}h${across}`, stroke: OUTLINE }), ...axis(ticks, at, bottom + 2, "s", width));
    fit(bars, bottom + 26, children);
    const back = rows.some((times) => times.length > 3) ? "; hollow in ink: preempted" : "";
    setText(bars.caption, rows.length ? `The first ${rows.length} requests that came after ${fixed(run.seconds / 5, 0)} s, a bar each: hollow while it waits, filled while it runs${back}.` : `No request came after ${fixed(run.seconds / 5, 0)} s.`);
  }

  // Batch, queue and memory have one time axis; dotted: no more requests come.
  function drawOverTime() {
    const across = width - LEFT - RIGHT, end = Math.max(run.end, 1e-9), at = (time) => LEFT + (across * time) / end, xs = run.time.map(at);
    const most = nice(Math.max(1, ...run.batch, ...run.queue)), top = most[most.length - 1], high = 92, y = (count) => 8 + (high * (top - count)) / top;
    const stop = (height) => s("path", { d: `M${at(run.seconds)} 4v${height}`, stroke: "var(--pe-ink)", "stroke-dasharray": "2 3" });
    const marks = [0, top / 2, top];
    fit(queue, high + 14, [
      ...marks.flatMap((value) => [s("path", { d: `M${LEFT} ${y(value)}h${across}`, stroke: OUTLINE, "stroke-opacity": value ? 0.3 : 1 }), label(LEFT - 7, y(value) + 4, String(value), { "text-anchor": "end" })]),
      s("path", { d: stepped(xs, run.queue.map(y)), stroke: "var(--pe-ink)", "stroke-width": 1.6, "stroke-dasharray": "5 3", fill: "none" }),
      s("path", { d: stepped(xs, run.batch.map(y)), stroke: hue, "stroke-width": 2.2, fill: "none" }), stop(high + 4),
    ]);
    const key = (colour, dash) => s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("path", { d: "M0 5h26", stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash }));
    queue.caption.replaceChildren(...[["Requests: ", key(hue, "none"), "running"], [key("var(--pe-ink)", "5 3"), "waiting"], ["dotted: the last one has come"]].map((parts) => h("span", { class: "pe-key-item" }, ...parts)));
    const tall = 120, rise = (percent) => 6 + (tall * (100 - percent)) / 100, children = [];
    if (run.parts) {
      let below = xs.map(() => 0);
      children.push(s("defs", {}, ...PARTS.map(({ field }) => pattern(id, field))));
      const pills = [];
      run.parts.forEach((part, i) => {
        const above = part.map((share, j) => below[j] + share), back = [...xs].reverse(), under = [...below].reverse();
        const return_ = back.map((x, j) => (j ? `V${rise(under[j]).toFixed(1)}H${x.toFixed(1)}` : `L${x.toFixed(1)} ${rise(under[0]).toFixed(1)}`)).join("");
        children.push(s("path", { d: `${stepped(xs, above.map(rise))}${return_}z`, fill: `url(#${id}-${PARTS[i].field})` }));
        children.push(s("path", { d: stepped(xs, above.map(rise)), stroke: "var(--pe-ground)", "stroke-width": 1, fill: "none" }));
        pills.push(...named(part, below, xs, PARTS[i].short, rise));
        below = above;
      });
      children.push(...pills);
    } else children.push(label(LEFT + 8, 6 + tall / 2, "This system keeps no account of its memory: padded batches.", { fill: "var(--pe-ink)" }));
    children.push(...[0, 50, 100].map((value) => label(LEFT - 7, rise(value) + 4, String(value), { "text-anchor": "end" })), stop(tall + 2),
      s("path", { d: `M${LEFT} ${rise(0)}h${across}M${LEFT} 6v${tall}`, stroke: OUTLINE, fill: "none" }), ...axis(nice(end).filter((tick) => tick <= end * 1.001), at, rise(0), "s", width));
    fit(memory, tall + 32, children);
    setText(memory.caption, "KV cache, % of its slots:");
    legend.replaceChildren(...(run.parts ? PARTS.map(({ field, name }, i) => h("span", { class: "pe-key-item" },
      s("svg", { width: 26, height: 16, "aria-hidden": "true" }, s("rect", { x: 0.5, y: 0.5, width: 25, height: 15, fill: `url(#${id}-${field})`, stroke: OUTLINE })), `${name} ${mean(run, i)} %`)) : []));
  }

  function draw() {
    if (!width || !run) return;
    drawBars();
    drawOverTime();
  }

  const unwatch = watchWidth(el, (now) => { width = now; draw(); });
  return {
    el,
    show(next, colour) {
      [run, hue] = [next, colour];
      inside.hidden = false;
      setText(said, run.told);
      draw();
    },
    destroy: unwatch,
  };
}

// The mean share of a memory part while requests came, the first fifth of that time left out.
function mean(run, part) {
  const shares = run.parts[part].filter((_, i) => run.time[i] >= run.seconds / 5 && run.time[i] <= run.seconds);
  return fixed(shares.reduce((sum, share) => sum + share, 0) / Math.max(1, shares.length), 0);
}

// The name of a part where it is thickest over the name's width, if there is room for letters.
function named(part, below, xs, words, rise) {
  const half = (6.6 * words.length + 12) / 2;
  let best = null;
  xs.forEach((x, i) => {
    if (x - half < LEFT || x + half > xs[xs.length - 1]) return;
    let low = 0, high = 100;
    for (let j = i; j >= 0 && (j === i || xs[j + 1] > x - half); j--) [low, high] = [Math.max(low, below[j]), Math.min(high, below[j] + part[j])];
    for (let j = i + 1; j < xs.length && xs[j] < x + half; j++) [low, high] = [Math.max(low, below[j]), Math.min(high, below[j] + part[j])];
    if (best === null || high - low > best.high - best.low) best = { x, low, high };
  });
  return best && rise(best.low) - rise(best.high) >= 20 ? pill(best.x, (rise(best.low) + rise(best.high)) / 2, words) : [];
}
