// Requests as bars over steps, with a line at the shown one. The bars are drawn when the trace grows; a step only moves the line.
import { h, s, setText, tooltip, watchWidth } from "./dom.js";
import { laneAt, lanesOf } from "./history.js";
import { look, OUTLINE } from "./palette.js";
import { counts } from "./pool.js";
import { counted } from "./sentence.js";

export const basis = 620;
export const grow = 3;

export const KINDS = {
  waiting: "waits", prefill: "prefill: computes its prompt, or again what was lost", decode: "decode: one token a step and branch",
  stalled: "runs, but gets no token in this step", preempted: "preempted: its blocks are gone", swapped: "swapped out to host memory",
};
const MOST_LANES = 32, MIN_STEP = 1.5, MAX_STEP = 44, BARS = 44, TOP = 16, AXIS = 22;

// The steps first..last and the lanes that fit, and where they stand; as in timeline_svg.py.
export function windowOf(lanes, first, last, now, left, room) {
  const fits = Math.max(8, Math.floor(room / MIN_STEP));
  if (last - first + 1 > fits) {
    const page = Math.floor(fits / 2);
    first = Math.max(first, Math.min(Math.floor((now - first) / page) * page + first - Math.floor(page / 2), last - fits + 1));
    last = Math.min(last, first + fits - 1);
  }
  if (lanes.length > MOST_LANES) {
    const open = lanes.findIndex((lane) => lane.ended === null || lane.ended >= now), at = open < 0 ? lanes.length : open;
    const start = Math.max(0, Math.min(at - 4, lanes.length - MOST_LANES));
    lanes = lanes.slice(start, start + MOST_LANES);
  }
  const row = Math.max(12, Math.min(26, Math.floor(390 / Math.max(1, lanes.length))));
  return { first, last, lanes, left, pitch: Math.min(MAX_STEP, room / Math.max(1, last - first + 1)), row };
}

// Step -> {prefill, decode}: tokens that it computed.
export function loads(lanes) {
  const found = new Map();
  for (const lane of lanes) {
    for (const { kind, first, tokens } of lane.spans) {
      tokens.forEach((count, i) => {
        if (!found.has(first + i)) found.set(first + i, { prefill: 0, decode: 0 });
        found.get(first + i)[kind === "prefill" ? "prefill" : "decode"] += count;
      });
    }
  }
  return found;
}

export function told(lane, step) {
  const name = `${look(lane.arrival).letter} (request ${lane.requestId})`, at = laneAt(lane, step);
  const whole = `${counted(lane.numPromptTokens, "prompt token")}, at most ${lane.maxTokens} new`;
  if (!at) {
    const gone = lane.ended !== null && step > lane.ended;
    return [`${name}, step ${step}: ${gone ? `ended in step ${lane.ended} (${lane.reason || "ended"})` : "not there"}`, whole];
  }
  const lines = [`${name}, step ${step}: ${at.kind}${at.tokens ? `, ${counted(at.tokens, "token")}` : ""}`];
  for (const [when, total, cached] of lane.cached) if (when === step && cached) lines.push(`admitted with ${counted(total, "token")}, ${cached} of them from the prefix cache`);
  lines.push(whole);
  const alive = lane.branches.filter((b) => b.born <= step && (b.ended === null || b.ended >= step)).length;
  if (alive > 1) lines.push(`${alive} branches`);
  if (lane.ended === step) lines.push(`ended: ${lane.reason === "kv_pool" ? "length, it filled the pool alone" : lane.reason || "ended"}`);
  return lines;
}

// A stretch of one kind, told by height, filling and line.
function mark(kind, x, y, width, high, hue) {
  const low = y + 0.22 * high, thin = 0.56 * high;
  if (kind === "prefill") {
    const parts = [s("rect", { x, y, width, height: high, rx: 2, fill: hue })];
    if (width >= 3) parts.push(s("path", { d: lines(x, y, width, high), stroke: "var(--pe-ground)", "stroke-width": 1.3, "stroke-opacity": 0.75 }));
    return parts;
  }
  if (kind === "decode") return [s("rect", { x, y: low, width, height: thin, rx: 2, fill: hue })];
  if (kind === "stalled") {
    return [s("rect", { x, y: low, width, height: thin, rx: 2, fill: hue, "fill-opacity": 0.25 }),
      s("path", { d: `M${x + 2} ${y + high / 2}h${Math.max(0, width - 4)}`, stroke: "var(--pe-ink)", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-dasharray": "0.1 4" })];
  }
  if (kind === "preempted" || kind === "swapped") {
    return [s("rect", { x: x + 0.75, y: low, width: Math.max(0.5, width - 1.5), height: thin, rx: 2, fill: "none", stroke: hue, "stroke-width": 1.8, "stroke-dasharray": kind === "swapped" ? "4 3" : "none" })];
  }
  return [s("path", { d: `M${x} ${y + high / 2}h${width}`, stroke: "var(--pe-muted)", "stroke-width": 1.5, "stroke-dasharray": "1.5 3.5" })];
}

// Rising diagonals that fill a rectangle.
function lines(x, y, width, height, gap = 5) {
  let path = "";
  for (let offset = gap / 2; offset < width + height; offset += gap) {
    const [x0, y0] = offset <= width ? [offset, 0] : [width, offset - width], [x1, y1] = offset <= height ? [0, offset] : [offset - height, height];
    path += `M${(x + x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
  }
  return path;
}

export function create(el, options) {
  const title = h("div", { class: "pe-headline" }), sub = h("div", { class: "pe-sub" });
  const picture = s("svg", { class: "pe-timeline", tabindex: 0, role: "img" });
  const stage = h("div", { class: "pe-stage" }, picture), legend = h("div", { class: "pe-key-list" }), note = h("div", { class: "pe-note" });
  el.append(title, sub, stage, legend, note);
  const tip = tooltip(stage);
  let state = null, context = null, width = 0, lanes = [], view = null, key = "", moving = null, ends = [], hovered = null;
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });
  const x = (at) => view.left + (Math.min(Math.max(at, view.first), view.last + 1) - view.first) * view.pitch;

  // The last step of the axis: of a running engine it grows by the half, so that the bars do not shrink at every step.
  function lastStep() {
    const { firstStep, lastStep } = context.trace;
    if (context.live === "none") return Math.max(lastStep, firstStep + 12);
    let room = 12;
    while (firstStep + room < lastStep) room = Math.ceil(room * 1.5);
    return firstStep + room;
  }

  function draw() {
    if (!state || !width) return;
    lanes = lanesOf(context.trace);
    const narrow = width < 520, left = narrow ? 34 : 88, room = Math.max(60, Math.min(width, 1100) - left - (narrow ? 10 : 44));
    view = windowOf(lanes, context.trace.firstStep + 1, lastStep(), context.step, left, room);
    const now = JSON.stringify([view.first, view.last, view.lanes.map((lane) => lane.arrival), left, room, context.selected, context.trace.lastStep, lanes.reduce((sum, l) => sum + (l.ended ?? 0) + l.spans.length, 0)]);
    if (now !== key) {
      key = now;
      bars(narrow);
    }
    move();
  }

  function bars(narrow) {
    const tall = TOP + view.lanes.length * view.row, high = view.row - (view.row < 14 ? 2 : 4), wide = Math.ceil(x(view.last + 1) + (narrow ? 8 : 42));
    picture.setAttribute("viewBox", `0 0 ${wide} ${tall + 10 + BARS + AXIS}`);
    picture.setAttribute("width", wide);
    picture.setAttribute("height", tall + 10 + BARS + AXIS);
    stage.style.width = `${wide}px`;
    const rows = view.lanes.map((lane, i) => row(lane, TOP + i * view.row, high, narrow));
    moving = s("g", { "pointer-events": "none" });
    ends = view.lanes.map((lane, i) => ({ lane, el: ending(lane, TOP + i * view.row, high, narrow) })).filter(({ el: drawn }) => drawn);
    picture.replaceChildren(...rows, ...load(tall + 10, narrow), ...axis(tall + 10 + BARS, narrow), moving, ...ends.map(({ el: drawn }) => drawn));
    const there = new Set(["waiting", "prefill", "decode", ...lanes.flatMap((lane) => lane.spans.map((span) => span.kind))]);
    const hue = look(view.lanes[0]?.arrival ?? 0).hue;
    const entries = Object.entries(KINDS).filter(([kind]) => there.has(kind)).map(([kind, words]) => item(mark(kind, 0, 0, 30, 14, hue), words));
    entries.push(item([s("rect", { x: 14, y: 0, width: 2.5, height: 14, fill: "var(--pe-ink)" })], narrow ? "its end" : "its end, and why. Left: prompt + most new tokens; in the bars: tokens of a step"));
    legend.replaceChildren(...entries);
    setText(note, view.lanes.length < lanes.length ? `the lanes of ${view.lanes.length} of ${lanes.length} requests: those about the first one that is unfinished` : "");
  }

  function item(shapes, words) { return h("span", { class: "pe-key-item" }, s("svg", { width: 30, height: 14, "aria-hidden": "true" }, ...shapes), words); }

  function row(lane, y, high, narrow) {
    const owner = look(lane.arrival), wide = Math.max(high, 6 + 0.62 * high * owner.letter.length), size = 0.76 * high, dim = context.selected !== null && context.selected !== lane.requestId;
    const parts = [s("rect", { x: 0, y, width: wide, height: high, rx: 3, fill: owner.hue }),
      s("text", { x: wide / 2, y: y + 0.79 * high, "text-anchor": "middle", "font-size": size, "font-weight": 700, fill: owner.onHue }, owner.letter)];
    if (view.row >= 12 && !narrow) parts.push(s("text", { x: view.left - 8, y: y + high / 2 + 4, "text-anchor": "end", "font-size": Math.min(11, view.row - 3), fill: "var(--pe-muted)" }, `${lane.numPromptTokens} + ${lane.maxTokens}`));
    for (const span of lane.spans) {
      const { kind, first, tokens } = span, last = first + tokens.length - 1;
      if (last < view.first || first > view.last) continue;
      const even = tokens.every((count) => count === tokens[0]);
      if (kind === "prefill" || (kind === "decode" && !(even && tokens[0] === 1))) {
        for (let at = Math.max(first, view.first); at <= Math.min(last, view.last); at++) parts.push(...worked(kind, tokens[at - first], at, y, high, owner));
      } else parts.push(...mark(kind, x(first), y, x(last + 1) - x(first), high, owner.hue));
    }
    return s("g", { opacity: dim ? 0.3 : 1 }, ...parts);
  }

  // Where a lane ends, and why.
  function ending(lane, y, high, narrow) {
    const span = lane.spans[lane.spans.length - 1], end = span ? span.first + span.tokens.length : lane.arrived + 1;
    if (lane.ended === null || end < view.first || end > view.last + 1) return null;
    const parts = [s("rect", { x: x(end) - 1, y, width: 2.5, height: high, fill: "var(--pe-ink)" })];
    if (view.row >= 12 && lane.reason && !narrow) parts.push(s("text", { x: x(end) + 5, y: y + high / 2 + 4, "font-size": 10, fill: "var(--pe-muted)" }, lane.reason === "kv_pool" ? "length" : lane.reason));
    return s("g", {}, ...parts);
  }

  function worked(kind, tokens, at, y, high, owner) {
    const gap = view.pitch >= 4 ? 1 : 0, label = String(tokens), size = Math.min(11, high - 3, (view.pitch - gap - 2) / (0.62 * label.length)), wide = 0.62 * size * label.length + 2, middle = x(at) + (view.pitch - gap) / 2;
    const parts = mark(kind, x(at), y, view.pitch - gap, high, owner.hue);
    if (tokens > 1 && size >= 7.5) {
      if (kind === "prefill") parts.push(s("rect", { x: middle - wide / 2, y: y + 1, width: wide, height: high - 2, rx: 2, fill: owner.hue }));
      parts.push(s("text", { x: middle, y: y + high / 2 + 0.36 * size, "text-anchor": "middle", "font-size": size, "font-weight": 600, fill: owner.onHue }, label));
    }
    return parts;
  }

  function load(y, narrow) {
    const found = loads(lanes), most = Math.max(0, ...[...found.values()].map((l) => l.prefill + l.decode)), gap = view.pitch >= 4 ? 1 : 0, scale = (BARS - 2) / Math.max(1, most);
    const label = (px, py, words, anchor, size) => s("text", { x: px, y: py, "font-size": size, "text-anchor": anchor, fill: "var(--pe-muted)" }, words);
    const parts = [label(view.left - 6, y + 9, String(most), "end", 10), label(view.left - 6, y + BARS, "0", "end", 10)];
    if (!narrow) parts.push(label(0, y + 12, "tokens", "start", 11), label(0, y + 25, "a step", "start", 11));
    for (const [at, { prefill, decode }] of found) {
      if (at < view.first || at > view.last || !(prefill + decode)) continue;
      const left = x(at), wide = view.pitch - gap, base = y + BARS, split = base - decode * scale, top = split - prefill * scale;
      parts.push(s("rect", { x: left, y: split, width: wide, height: base - split, fill: OUTLINE }));
      if (prefill) {
        parts.push(s("rect", { x: left, y: top, width: wide, height: split - top, fill: OUTLINE, "fill-opacity": 0.3 }));
        if (wide >= 3) parts.push(s("path", { d: lines(left, top, wide, split - top), stroke: OUTLINE, "stroke-width": 1.2 }));
      }
    }
    return parts;
  }

  function axis(y, narrow) {
    const parts = [s("path", { d: `M${view.left} ${y}H${x(view.last + 1)}`, stroke: OUTLINE })];
    parts.push(s("text", { x: 0, y: y + 15, "font-size": 11, fill: "var(--pe-muted)" }, "step"));
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].find((n) => n * view.pitch >= (narrow ? 30 : 26)) ?? 10000;
    for (let at = Math.ceil(view.first / every) * every; at <= view.last; at += every) {
      const middle = x(at) + view.pitch / 2;
      parts.push(s("path", { d: `M${middle} ${y}v4`, stroke: OUTLINE }), s("text", { x: middle, y: y + 15, "font-size": 10, "text-anchor": "middle", fill: "var(--pe-muted)" }, String(at)));
    }
    return parts;
  }

  // The line at the shown step, what lies beyond it, and the cell that is pointed at.
  function move() {
    const edge = x(context.step + 1), tall = TOP + view.lanes.length * view.row, end = x(view.last + 1), parts = [];
    if (edge < end) parts.push(s("rect", { x: edge, y: TOP - 4, width: Number(picture.getAttribute("width")) - edge, height: tall + BARS + 16 - TOP, fill: "var(--pe-ground)", "fill-opacity": 0.7 }));
    parts.push(s("path", { d: `M${edge} 8V${tall + 10 + BARS}`, stroke: "var(--pe-ink)", "stroke-width": 1.5 }), s("path", { d: `M${edge - 5} 2h10l-5 7z`, fill: "var(--pe-ink)" }));
    if (hovered && view.lanes[hovered.lane]) parts.push(s("rect", { x: x(hovered.step), y: TOP + hovered.lane * view.row - 1, width: Math.max(2, view.pitch), height: view.row - (view.row < 14 ? 0 : 2), fill: "none", stroke: "var(--pe-ink)", "stroke-width": 2 }));
    moving.replaceChildren(...parts);
    for (const { lane, el: drawn } of ends) drawn.setAttribute("opacity", lane.ended > context.step ? 0.35 : 1);
    setText(title, `${counted(lanes.length, "request")} over ${counted(context.trace.lastStep - context.trace.firstStep, "step")}`);
    setText(sub, counts(state));
    picture.setAttribute("aria-label", `Timeline at step ${context.step}: ${summary()}; ${counts(state)}. Arrow keys go from step to step and from request to request, Escape leaves.`);
  }

  function summary() {
    const doing = new Map();
    for (const lane of lanes) {
      const at = laneAt(lane, context.step);
      if (at) doing.set(at.kind, [...(doing.get(at.kind) ?? []), look(lane.arrival).letter]);
    }
    return [...doing].sort().map(([kind, names]) => `${names.join(", ")} ${kind}`).join("; ") || "nobody is there";
  }

  // -- what the mouse, a finger or the arrow keys point at
  function at(event) {
    const box = picture.getBoundingClientRect(), scale = box.width ? Number(picture.getAttribute("width")) / box.width : 1;
    const lane = Math.floor(((event.clientY - box.top) * scale - TOP) / view.row), step = view.first + Math.floor(((event.clientX - box.left) * scale - view.left) / view.pitch);
    if (!view.lanes[lane] || step > view.last) return null;
    return { lane, step: Math.max(view.first, step) };
  }

  function point(found) {
    hovered = found;
    if (!view) return;
    if (!found || !view.lanes[found.lane]) tip.hide();
    else {
      const scale = picture.getBoundingClientRect().width / Number(picture.getAttribute("width")) || 1;
      tip.show(told(view.lanes[found.lane], found.step), (x(found.step) + view.pitch / 2) * scale, (TOP + (found.lane + 0.5) * view.row) * scale);
    }
    move();
  }

  const listeners = {
    pointermove: (event) => { if (view) point(at(event)); },
    pointerleave: () => point(null),
    pointerdown: (event) => { if (view) point(at(event)); },
    click(event) {
      const found = view && at(event);
      if (found) options.select(view.lanes[found.lane].requestId);
    },
    focus: () => { if (view && !hovered && picture.matches(":focus-visible")) point({ lane: 0, step: Math.min(Math.max(context.step, view.first), view.last) }); },
    blur: () => point(null),
    keydown(event) {
      const [over, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
      if (event.key === "Escape") picture.blur();
      else if (over !== undefined && hovered) {
        point({ lane: Math.min(Math.max(hovered.lane + down, 0), view.lanes.length - 1), step: Math.min(Math.max(hovered.step + over, view.first), view.last) });
        event.preventDefault();
      } else return;
      event.stopPropagation();
    },
  };
  for (const [name, listener] of Object.entries(listeners)) picture.addEventListener(name, listener);

  return {
    update(newState, newContext) {
      [state, context] = [newState, newContext];
      draw();
      if (hovered) point(hovered);
    },
    destroy() {
      unwatch();
      el.replaceChildren();
    },
  };
}
