// The block table of one request: logical block -> physical block, with an arrow into the pool (Paper Fig. 6, §4.3).
import { h, s, setText, sharp, tooltip, watchWidth } from "./dom.js";
import { look, OUTLINE, theme } from "./palette.js";
import { FONT, roundRect } from "./paint.js";
import { counted } from "./sentence.js";
import { SWAPPED } from "./trace.js";

export const basis = 560;

const ROW = 22, TOP = 24, LEFT = 214, MOST = 24, HEAD = 8;

// The rows of a table that are shown: all of them, or its beginning and its end with null for what is between.
export function rowsShown(count) {
  const all = Array.from({ length: count }, (_, i) => i);
  return count <= MOST ? all : [...all.slice(0, HEAD), null, ...all.slice(count - (MOST - HEAD - 1))];
}

// Which request the table is of: the chosen one if it is still there, else the newest that has blocks, else the newest.
export function chosen(state, wanted) {
  if (wanted !== null && wanted !== undefined && state.requests.has(wanted)) return wanted;
  const held = new Set([...state.sequences.values()].filter((seq) => seq.blocks.length || seq.cpuBlocks.length).map((seq) => seq.requestId));
  const ids = [...state.requests].sort((a, b) => b[1].arrival - a[1].arrival).map(([id]) => id);
  return ids.find((id) => held.has(id)) ?? ids[0] ?? null;
}

// The division with remainder behind an address, for the last token that was written.
export function translation(seq, size) {
  const position = seq.numComputed - 1, logical = Math.floor(position / size);
  if (position < 0 || logical >= seq.blocks.length) return "";
  const offset = position % size, block = seq.blocks[logical];
  return `position ${position}: ${position} = ${logical} × ${size} + ${offset}, so logical block ${logical}, offset ${offset}; it is in physical block ${block}: slot ${block} × ${size} + ${offset} = ${block * size + offset}`;
}

export function create(el, options) {
  const title = h("div", { class: "pe-headline" }), branches = h("div", { class: "pe-row" }), note = h("div", { class: "pe-note" });
  const picture = s("svg", { class: "pe-table", role: "group" });
  const pool = h("canvas", { class: "pe-canvas pe-under", "aria-hidden": "true" }), stage = h("div", { class: "pe-stage" }, pool, picture), tip = tooltip(stage);
  el.append(title, branches, stage, note);
  let size = "", drawn = [];
  let grid = null;                                          // the small pool: {columns, cell, count}; null: there is none
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), x = event.clientX - box.left - LEFT - 40, y = event.clientY - box.top - TOP;
    const column = Math.floor(x / grid?.cell), block = Math.floor(y / grid?.cell) * grid?.columns + column;
    if (!grid || x < 0 || y < 0 || column >= grid.columns || block >= grid.count) return tip.hide();
    const owner = [...state.sequences.values()].find((seq) => seq.blocks.includes(block));
    tip.show([`block ${block}: ${owner ? look(state.request(owner.requestId).arrival).letter : "free"}`], x + LEFT + 40, y + TOP);
  });
  picture.addEventListener("pointerleave", () => tip.hide());
  let state = null, context = null, width = 0, branch = null, pinned = null, hovered = null;
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });

  function draw() {
    if (!state || !width) return;
    const id = chosen(state, context.selected ?? options.request);
    const ids = id === null ? [] : [...state.sequences].filter(([, seq]) => seq.requestId === id).map(([seqId]) => seqId).sort((a, b) => a - b);
    if (!ids.includes(branch)) branch = ids[0] ?? null;
    branches.hidden = ids.length < 2;
    branches.replaceChildren(...ids.map((seqId, i) => h("button", {
      type: "button", class: "pe-button", "aria-pressed": String(seqId === branch), onclick: () => { branch = seqId; pinned = null; options.redraw(); },
    }, `branch ${i + 1}`)));
    if (branch === null) {
      setText(title, "no request is unfinished: there is no block table");
      picture.replaceChildren();
      pool.hidden = true;
      setText(note, "");
      return;
    }
    const seq = state.seq(branch), request = state.request(id), owner = look(request.arrival), away = request.status === SWAPPED && seq.cpuBlocks.length > 0;
    const table = away ? seq.cpuBlocks : seq.blocks, size = state.blockSize;
    setText(title, `block table of ${owner.letter} (request ${id}${ids.length > 1 ? `, branch ${ids.indexOf(branch) + 1}` : ""}): `
      + (table.length ? `${counted(seq.numComputed, "token")} in ${counted(table.length, away ? "host block" : "block")}` : `empty, it is ${request.status}`));
    setText(note, away ? "swapped out: the table points into host memory until there is room again" : translation(seq, size));
    paint(seq, owner, table, away, size);
  }

  function paint(seq, owner, table, away, size) {
    const rows = rowsShown(table.length), count = away ? 0 : state.numBlocks;
    const room = Math.min(width, 800) - LEFT - 40, columns = gridColumns(count, room), cell = count ? Math.max(5, Math.min(30, Math.floor(room / columns))) : 0;
    const lines = count ? Math.ceil(count / columns) : 0, tall = TOP + Math.max(rows.length * ROW, lines * cell, ROW) + 8;
    const shows = count > 0 && room > 60, wide = shows ? LEFT + 40 + columns * cell + 2 : LEFT;
    picture.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
    picture.setAttribute("width", wide);
    picture.setAttribute("height", tall);
    picture.setAttribute("aria-label", `Block table: ${table.map((block, i) => `${i} to ${block}`).join(", ") || "empty"}`);
    picture.style.setProperty("--hue", owner.hue);
    const text = (x, y, words, attributes = {}) => s("text", { x, y, "font-size": 12, fill: "var(--pe-ink)", ...attributes }, words);
    const muted = { fill: "var(--pe-muted)", "font-size": 11 };
    const parts = [text(4, 14, "logical", muted), text(62, 14, away ? "host" : "physical", muted), text(124, 14, "filled", muted)];
    const ends = [];
    grid = shows ? { columns, cell, count } : null;
    const at = (block) => [LEFT + 40 + (block % columns) * cell, TOP + Math.floor(block / columns) * cell];
    if (shows) parts.push(text(LEFT + 40, 14, room > 150 ? `the pool, ${counted(count, "block")}` : "the pool", muted));
    cells(wide, tall, at, cell, seq);
    const arrows = s("g", { fill: "none", stroke: owner.hue, "stroke-width": 1.5 });
    rows.forEach((index, line) => {
      const y = TOP + line * ROW;
      if (index === null) return void parts.push(text(4, y + 15, `... ${table.length - (MOST - 1)} more ...`, muted));
      const block = table[index], filled = Math.min(size, Math.max(0, seq.numComputed - index * size));
      if (shows) ends.push([index, y + ROW / 2, ...at(block)]);
      parts.push(row(index, block, filled, size, y, away, text, table.length));
    });
    const few = table.length <= MOST, lit = hovered ?? pinned ?? table.length - 1;       // at first: the block that was taken last
    for (const [index, y, u, v] of ends) if (few && index !== lit) arrows.append(arrow(y, u, v, cell, { "stroke-opacity": 0.3 }));
    for (const [index, y, u, v] of ends) {
      if (index === lit) arrows.append(arrow(y, u, v, cell, { stroke: "var(--pe-ink)", "stroke-width": 4.5, "stroke-opacity": 0.55 }), arrow(y, u, v, cell, { "stroke-width": 2.5 }));
    }
    picture.replaceChildren(...parts, arrows);
  }

  // The small pool lies on a canvas under the arrows: a thousand elements would be too slow to move ten times a second.
  function cells(wide, tall, at, cell, seq) {
    pool.hidden = !grid;
    if (!grid) return;
    const colours = theme(el), now = JSON.stringify([wide, tall, grid, colours, window.devicePixelRatio]);
    if (now !== size) {
      size = now;
      drawn = [];
      sharp(pool, wide, tall);
    }
    const brush = pool.getContext("2d"), mine = new Set(seq.blocks);
    for (const view of state.blocks()) {
      const arrival = view.owners.length ? state.arrival(view.owners[0]) : null, own = mine.has(view.block), key = `${arrival} ${own}`;
      if (drawn[view.block] === key) continue;
      drawn[view.block] = key;
      drawCell(brush, ...at(view.block), cell, view.block, own, arrival === null ? null : look(arrival), colours);
    }
  }

  function drawCell(brush, x, y, cell, block, own, owner, colours) {
    const corner = cell < 12 ? 0 : Math.min(4, cell / 5);
    brush.clearRect(x, y, cell, cell);
    if (owner) {
      brush.globalAlpha = own ? 0.85 : 0.25;
      roundRect(brush, x + 1, y + 1, cell - 2, cell - 2, corner, owner.hue);
    }
    brush.globalAlpha = own ? 1 : 0.5;
    roundRect(brush, x + 1.5, y + 1.5, cell - 3, cell - 3, corner, null, own ? colours.ink : OUTLINE);
    brush.globalAlpha = 1;
    const words = own ? String(block) : owner ? owner.letter : "";
    if (words && cell >= 18) {
      brush.font = `${cell >= 26 ? 10 : 8}px ${FONT}`;
      brush.textAlign = "center";
      brush.fillStyle = own && owner ? owner.onHue : colours.muted;
      brush.fillText(words, x + cell / 2, y + cell / 2 + 3.5);
    }
  }

  function row(index, block, filled, size, y, away, text, count) {
    const pitch = 52 / size, lit = index === (hovered ?? pinned ?? count - 1);
    const point = (to) => () => { hovered = to; options.redraw(); };
    const toggle = () => { pinned = pinned === index ? null : index; options.redraw(); };
    return s("g", {
      class: "pe-entry", tabindex: 0, role: "button", "aria-pressed": String(pinned === index), "aria-label": `logical block ${index}: ${away ? "host" : "physical"} block ${block}, ${filled} of ${size} slots filled`,
      "data-index": index, onclick: toggle, onpointerenter: point(index), onpointerleave: point(null),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { toggle(); event.preventDefault(); event.stopPropagation(); } },
    },
    s("rect", { x: 1, y: y + 1, width: LEFT - 4, height: ROW - 2, rx: 4, fill: "var(--hue)", "fill-opacity": lit ? 0.35 : 0.12, stroke: lit ? "var(--pe-ink)" : OUTLINE, "stroke-opacity": lit ? 1 : 0.5, "stroke-dasharray": away ? "3 2" : "none" }),
    text(10, y + 15, String(index)), text(68, y + 15, String(block), { "font-weight": 700 }),
    s("rect", { x: 124, y: y + 6, width: 52, height: ROW - 12, fill: "var(--pe-ink)", "fill-opacity": 0.13 }),
    s("rect", { x: 124, y: y + 6, width: filled * pitch, height: ROW - 12, fill: "var(--hue)" }),
    text(LEFT - 8, y + 15, `${filled}/${size}`, { "text-anchor": "end", "font-size": 10 }));
  }

  // An orthogonal line with at most one bend, from a row to a block.
  function arrow(y, u, v, cell, style) {
    const x = u + cell / 2, level = y >= v && y <= v + cell, edge = y < v ? v : v + cell, sign = y < v ? -1 : 1;
    const path = level ? `M${LEFT - 2} ${y}H${u}` : `M${LEFT - 2} ${y}H${x}V${edge}`;
    const head = level ? `M${u - 5} ${y - 3.5}L${u} ${y}L${u - 5} ${y + 3.5}` : `M${x - 3.5} ${edge + 5 * sign}L${x} ${edge}L${x + 3.5} ${edge + 5 * sign}`;
    return s("path", { d: path + head, "pointer-events": "none", ...style });
  }

  return {
    update(newState, newContext) {
      if (newContext.moved || state !== newState) hovered = null;
      state = newState;
      context = newContext;
      const focused = picture.contains(document.activeElement) ? document.activeElement.dataset.index : null;
      draw();
      if (focused !== null) picture.querySelector(`[data-index="${focused}"]`)?.focus();
    },
    destroy() {
      unwatch();
      el.replaceChildren();
    },
  };
}

// Blocks in a row of the small pool: 8 while that keeps it as tall as the table may be, else more.
function gridColumns(count, room) {
  for (const columns of [8, 16, 24, 32, 40, 48, 64]) if (Math.ceil(count / columns) * Math.min(30, room / columns) <= 420) return Math.min(columns, Math.max(1, count));
  return 64;
}
