// The branches of one request over the blocks that they share: forks, reference counts, copies before a write (Paper §4.4, Fig. 8, 9).
import { h, s, setText, tooltip, watchWidth } from "./dom.js";
import { lanesOf } from "./history.js";
import { layOut, rowOf } from "./layout.js";
import { look, OUTLINE } from "./palette.js";
import { counted, percent } from "./sentence.js";

export const basis = 620;
export const grow = 2;

const FLASH_MS = 600, MOST_ROWS = 16, TOP = 40, FLASH_GAP_MS = 334;

// The branches of `wanted`, or of the newest request that has several, or that has blocks, or that had several; null: there is no request.
export function family(trace, state, step, wanted = null) {
  const there = lanesOf(trace).filter((lane) => lane.arrived <= step), live = new Map([...state.requests.keys()].map((id) => [id, new Map()]));
  for (const [seqId, seq] of [...state.sequences].sort((a, b) => a[0] - b[0])) live.get(seq.requestId).set(seqId, seq);
  const now = (lane) => state.requests.get(lane.requestId)?.arrival === lane.arrival ? live.get(lane.requestId) : new Map();
  const rules = [
    (lane) => lane.requestId === wanted, (lane) => now(lane).size > 1, (lane) => [...now(lane).values()].some((seq) => seq.blocks.length || seq.cpuBlocks.length),
    (lane) => lane.branches.filter((b) => b.born <= step).length > 1, () => true,
  ];
  const reversed = [...there].reverse(), lane = rules.map((rule) => reversed.find(rule)).find((found) => found);
  if (!lane) return null;
  const refs = new Map();
  for (const seq of state.sequences.values()) for (const block of seq.blocks) refs.set(block, (refs.get(block) ?? 0) + 1);
  const own = now(lane), events = step > trace.firstStep ? trace.events(step) : [];
  const copies = events.filter(([name, seqId]) => name === "BlockCopied" && own.has(seqId)).map(([, , , src, dst]) => [src, dst]);
  return { lane, live: own, numbers: new Map(lane.branches.map((b, i) => [b.seqId, i])), refs, copies };
}

export const pathsOf = (found) => new Map([...found.live].map(([seqId, seq]) => [seqId, seq.blocks.length ? seq.blocks : seq.cpuBlocks]));

export function headline(found) {
  if (!found) return "no request has arrived yet";
  const name = look(found.lane.arrival).letter, tables = [...pathsOf(found).values()], used = new Set(tables.flat()).size, entries = tables.flat().length;
  if (!found.live.size) return found.lane.branches.length > 1 ? `${name}: all branches have ended` : `${name} has ended`;
  const words = `${name}: ${counted(found.live.size, "branch", "branches")}, ${counted(used, "block")}`;
  return entries > used ? `${words} instead of ${entries} without sharing (${percent(entries - used, entries)} saved)` : words;
}

export function happened(found, step) {
  const parts = [], { branches } = found.lane, some = (list) => list.slice(0, 8).join(", ") + (list.length > 8 ? " ..." : "");
  const born = branches.filter((b) => b.born === step && b.parent !== null);
  if (born.length) parts.push(`new branches: ${some(born.map((b) => `${found.numbers.get(b.seqId)} from ${found.numbers.get(b.parent)}`))}`);
  if (found.copies.length) parts.push(`copied before a write: block ${some(found.copies.map(([src, dst]) => `${src} to ${dst}`))}`);
  const pruned = branches.filter((b) => b.ended === step && b.reason === "pruned");
  if (pruned.length) parts.push(`nobody went on from ${pruned.map((b) => found.numbers.get(b.seqId)).join(", ")}`);
  return parts.join("; ") || "no fork and no copy in this step";
}

export function create(el, options) {
  const title = h("div", { class: "pe-headline" }), sub = h("div", { class: "pe-sub" }), picture = s("svg", { class: "pe-picture", role: "group" });
  const stage = h("div", { class: "pe-stage" }, picture), ended = h("div", { class: "pe-note" }), note = h("div", { class: "pe-note" });
  el.append(title, sub, stage, ended, note);
  const tip = tooltip(stage);
  let state = null, context = null, width = 0, timer = 0, flashed = -FLASH_GAP_MS, calm = false, found = null;
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });

  function draw() {
    if (!state || !width) return;
    found = family(context.trace, state, context.step, context.selected ?? options.request ?? null);
    setText(title, headline(found));
    setText(sub, found ? happened(found, context.step) : "");
    const gone = found ? found.lane.branches.filter((b) => b.ended !== null && b.ended <= context.step && !["pruned", ""].includes(b.reason)) : [];
    const words = gone.slice(0, 8).map((b) => `${found.numbers.get(b.seqId)} (${b.reason}, ${counted(b.output.length, "token")}${written(b.output)})`);
    setText(ended, gone.length ? `ended: branch ${words.join(", ")}${gone.length > 8 ? ` and ${gone.length - 8} more` : ""}` : "");
    const more = found && found.live.size > MOST_ROWS ? `; the first ${MOST_ROWS} of ${found.live.size} branches` : "";
    setText(note, options.brief ? more.slice(2) : `a block has ${counted(state.blockSize, "slot")}; ×n and a double outline: n block tables refer to it; who writes to such a block copies it first${more}`);
    picture.setAttribute("aria-label", `Branches at step ${context.step}: ${headline(found)}${found ? `; ${happened(found, context.step)}` : ""}`);
    paint();
  }

  // The text of an ended branch, if its tokens have one.
  function written(tokens) {
    const text = tokens.every((token) => token in context.words) ? tokens.map((token) => context.words[token]).join("") : "";
    return text ? `: ${JSON.stringify(text.length > 24 ? `${text.slice(0, 24)}...` : text)}` : "";
  }

  function paint() {
    const focused = picture.contains(document.activeElement) ? document.activeElement.dataset.block : null;
    if (!found || !found.live.size) {
      picture.replaceChildren();
      picture.setAttribute("height", 0);
      return;
    }
    const narrow = width < 520, wide = narrow ? 36 : 48, pitch = narrow ? 48 : 70, labels = narrow ? 62 : 190, room = Math.min(width, 1000);
    const tree = layOut(new Map([...pathsOf(found)].slice(0, MOST_ROWS)), Math.max(4, Math.floor((room - labels) / pitch)));
    const row = Math.max(20, Math.min(42, 400 / Math.max(1, tree.order.length))), high = Math.min(34, row - 4), view = { tree, wide, pitch, row, high, narrow };
    const size = [tree.columns.length * pitch + labels, TOP + Math.max(1, tree.order.length) * row + 4];
    picture.setAttribute("viewBox", `0 0 ${size[0]} ${size[1]}`);
    picture.setAttribute("width", size[0]);
    picture.setAttribute("height", size[1]);
    picture.replaceChildren(
      ...prompt(view), s("path", { d: edges(view), stroke: OUTLINE, "stroke-width": 1.3, fill: "none" }), ...tree.cells.map((cell) => block(view, cell)),
      ...gaps(view),
      ...(calm ? [] : copies(view)), ...branches(view));
    if (focused) picture.querySelector(`[data-block="${focused}"]`)?.focus();
  }

  const place = (view, cell) => [1 + cell.column * view.pitch, TOP + (rowOf(cell) + 0.5) * view.row];

  function prompt({ tree, wide, pitch }) {
    const full = Math.floor(found.lane.numPromptTokens / state.blockSize), rest = found.lane.numPromptTokens % state.blockSize;
    let end = 0;
    tree.columns.forEach(([logical, out], i) => {
      if (logical < full) end = i * pitch + wide;
      else if (logical === full && rest && !out) end = i * pitch + (wide * rest) / state.blockSize;
    });
    if (!end) return [];
    return [s("path", { d: `M1 ${TOP - 12}v-6H${end}v6`, stroke: OUTLINE, fill: "none" }), s("text", { x: 1, y: TOP - 24, "font-size": 11, fill: "var(--pe-muted)" }, `prompt, ${counted(found.lane.numPromptTokens, "token")}`)];
  }

  function edges(view) {
    return view.tree.edges.map(([a, b]) => {
      const [x, y] = place(view, view.tree.cells[a]), [u, v] = place(view, view.tree.cells[b]);
      return `M${x + view.wide} ${y}H${u - (view.pitch - view.wide) / 2}V${v}H${u}`;
    }).join("");
  }

  // How many blocks a stretch leaves out, on its line.
  function gaps({ tree, wide, pitch, row }) {
    return tree.edges.filter(([a, b]) => tree.cells[b].column - tree.cells[a].column > 1).map(([a, b]) => s("text", {
      x: (tree.cells[a].column + 1) * pitch + wide / 2, y: TOP + (rowOf(tree.cells[b]) + 0.5) * row - 5, "font-size": 11, "text-anchor": "middle", fill: "var(--pe-muted)",
    }, `+ ${tree.columns[tree.cells[a].column + 1][1]}`));
  }

  function block(view, cell) {
    const { tree, wide, high } = view, [x, middle] = place(view, cell), y = middle - high / 2, owner = look(found.lane.arrival), seqs = cell.rows.map((r) => found.live.get(tree.order[r]));
    const fill = Math.max(...seqs.map((seq) => Math.min(state.blockSize, Math.max(0, seq.numComputed - cell.logical * state.blockSize)))), away = !seqs[0].blocks.length;
    const refs = away ? cell.rows.length : found.refs.get(cell.block), tall = high >= 26, top = y + (tall ? 13 : 3), strip = tall ? high - 16 : high - 6, pitch = (wide - 8) / state.blockSize;
    const lines = told(cell, tree, seqs, fill, away, refs), show = () => tip.show(lines, x + wide / 2, middle);
    const parts = [s("rect", { x, y, width: wide, height: high, rx: 5, fill: "var(--pe-ground)" }),
      s("rect", { x, y, width: wide, height: high, rx: 5, fill: owner.hue, "fill-opacity": 0.18, stroke: OUTLINE, "stroke-dasharray": away ? "3 2" : "none" })];
    if (refs > 1) parts.push(s("rect", { x: x + 2.5, y: y + 2.5, width: wide - 5, height: high - 5, rx: 3, fill: "none", stroke: OUTLINE }));
    parts.push(s("rect", { x: x + 4, y: top, width: wide - 8, height: strip, fill: "var(--pe-ink)", "fill-opacity": 0.1 }), s("path", { d: ticks(x + 4, top, pitch, strip, fill), fill: owner.hue }));
    if (tall) {
      if (refs < 2 || 6 * `${cell.block}×${refs}`.length + 12 < wide) parts.push(s("text", { x: x + 5, y: y + 11, "font-size": 9.5, fill: "var(--pe-ink)" }, String(cell.block)));
      if (refs > 1) parts.push(s("text", { x: x + wide - 5, y: y + 11, "font-size": 10, "font-weight": 700, "text-anchor": "end", fill: "var(--pe-ink)" }, `×${refs}`));
    }
    return s("g", {
      class: "pe-entry", tabindex: 0, role: "img", "aria-label": lines.join(". "), "data-block": cell.block, onpointerenter: show, onpointerdown: show, onpointerleave: () => tip.hide(),
      onfocus: (event) => { if (event.target.matches(":focus-visible")) show(); }, onblur: () => tip.hide(),
      onkeydown: (event) => { if (event.key === "Escape") { tip.hide(); event.stopPropagation(); } },
    }, ...parts);
  }

  function ticks(x, y, pitch, height, stop) {
    if (pitch < 2) return stop ? `M${x} ${y}h${stop * pitch}v${height}h${-stop * pitch}z` : "";
    const wide = pitch - Math.min(1, 0.3 * pitch);
    return Array.from({ length: stop }, (_, i) => `M${x + i * pitch} ${y}h${wide}v${height}h${-wide}z`).join("");
  }

  function told(cell, tree, seqs, fill, away, refs) {
    const lines = [`${away ? "host block" : "block"} ${cell.block}, logical block ${cell.logical}: ${fill} of ${counted(state.blockSize, "slot")} hold tokens`];
    lines.push(`of branch ${cell.rows.map((r) => found.numbers.get(tree.order[r])).join(", ")}`);
    if (refs > cell.rows.length) lines.push(`${refs} block tables refer to it, those of other requests too`);
    const from = cell.logical * state.blockSize, tokens = seqs[0].tokens.slice(from, from + Math.min(fill, 16)), more = fill > 16 ? " ..." : "";
    if (fill) lines.push(tokens.every((token) => token in context.words) ? `text: ${JSON.stringify(tokens.map((token) => context.words[token]).join(""))}${more}` : `tokens: ${tokens.join(" ")}${more}`);
    return lines;
  }

  function copies(view) {
    const { tree, wide, high } = view, at = new Map(tree.cells.map((cell) => [cell.block, cell])), parts = [];
    for (const [src, dst] of found.copies) {
      if (!at.has(dst)) continue;
      const [x, y] = place(view, at.get(dst));
      for (const id of [src, dst]) {
        if (!at.has(id)) continue;
        const [u, v] = place(view, at.get(id));
        parts.push(s("rect", { x: u, y: v - high / 2, width: wide, height: high, rx: 5, fill: "none", stroke: "var(--pe-ink)", "stroke-width": 3 }));
      }
      if (at.has(src)) {
        const [u, v] = place(view, at.get(src));
        parts.push(s("path", { d: `M${u} ${v}H${u - 7}V${y}H${x - 1}m-4 -3.5l4 3.5l-4 3.5`, stroke: "var(--pe-ink)", "stroke-width": 2, fill: "none" }));
      }
      parts.push(s("rect", { x: x + wide - 20, y: y + high / 2 - 8, width: 34, height: 15, rx: 7, fill: "var(--pe-ground)", stroke: "var(--pe-ink)" }),
        s("text", { x: x + wide - 3, y: y + high / 2 + 3, "font-size": 10, "font-weight": 600, "text-anchor": "middle", fill: "var(--pe-ink)" }, "copy"));
    }
    return [s("g", { class: "pe-copies", "pointer-events": "none" }, ...parts)];
  }

  function branches(view) {
    const { tree, wide, pitch, row, narrow } = view, owner = look(found.lane.arrival), x = tree.columns.length * pitch + 12, parts = [];
    const born = new Map(found.lane.branches.filter((b) => b.born === context.step && b.parent !== null).map((b) => [b.seqId, b.parent]));
    tree.order.forEach((seqId, r) => {
      const y = TOP + (r + 0.5) * row, number = String(found.numbers.get(seqId)), chip = 16 + 7 * (number.length - 1), seq = found.live.get(seqId);
      if (tree.ends[r] !== null) {
        const [u, v] = place(view, tree.cells[tree.ends[r]]);
        parts.push(s("path", { d: `M${u + wide} ${v}H${Math.max(u + wide, x - 20)}V${y}H${x - 4}`, stroke: OUTLINE, "stroke-width": 1.3, fill: "none" }));
      }
      parts.push(s("rect", { x, y: y - 8, width: chip, height: 16, rx: 4, fill: owner.hue }),
        s("text", { x: x + chip / 2, y: y + 4, "font-size": 11, "font-weight": 700, "text-anchor": "middle", fill: owner.onHue }, number));
      const output = seq.tokens.length - found.lane.numPromptTokens, from = born.has(seqId) && found.numbers.has(born.get(seqId)) ? found.numbers.get(born.get(seqId)) : null;
      const words = narrow ? `+ ${output}` : `${found.lane.numPromptTokens} + ${counted(output, "token")}${from ? `, from ${from}` : ""}`;
      parts.push(s("text", { x: x + chip + 7, y: y + 4, "font-size": 12, fill: "var(--pe-ink)" }, words));
    });
    return parts;
  }

  return {
    update(newState, newContext) {
      [state, context] = [newState, newContext];
      if (context.moved) {
        clearTimeout(timer);
        tip.hide();
        // A flash, at most three a second; where steps come faster, or motion is unwelcome, the outline stays until the next step.
        calm = false;
        if (context.animate && performance.now() - flashed >= FLASH_GAP_MS && context.trace.events(context.step).some((event) => event[0] === "BlockCopied")) {
          flashed = performance.now();
          timer = setTimeout(() => { calm = true; options.redraw(); }, FLASH_MS);
        }
      }
      draw();
    },
    destroy() {
      clearTimeout(timer);
      unwatch();
      el.replaceChildren();
    },
  };
}
