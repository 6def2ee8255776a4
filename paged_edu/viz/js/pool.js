// The block pool on a canvas: every physical block, who owns it, how many of its slots hold a token (Paper Fig. 6, 7). 1,000 blocks stay smooth
// because only the blocks that changed are drawn again.
import { h, setText, sharp, tooltip, watchWidth } from "./dom.js";
import { look, theme } from "./palette.js";
import { PREEMPTED, RUNNING, SWAPPED, WAITING } from "./trace.js";
import { counted } from "./sentence.js";
import { arrow, drawBlock, label } from "./block.js";
import { FONT } from "./paint.js";

const CELLS = [48, 40, 36, 32, 28, 24, 20, 16, 14, 12, 10, 8, 7, 6, 5];
const MAX_HEIGHT = 500, MAX_WIDTH = 800, FLASH_MS = 600;

// The largest cells with which `count` blocks fit: 16 or more in a row, so that one look tells how many there are.
export function fit(count, width, columns = null, maxHeight = MAX_HEIGHT) {
  const across = (cell) => columns ?? Math.max(1, width / cell >= 16 ? Math.floor(width / cell / 8) * 8 : Math.floor(width / cell));
  for (const cell of CELLS) {
    const n = Math.min(across(cell), count);
    if (n * cell <= width && (columns || n === count || n >= 16) && Math.ceil(count / n) * cell <= maxHeight) return { cell, columns: n, shown: count };
  }
  const cell = CELLS[CELLS.length - 1], n = Math.max(1, Math.min(across(cell), Math.floor(width / cell)));
  return { cell, columns: n, shown: Math.min(count, n * Math.floor(maxHeight / cell)) };
}

export function headline(state, blocks) {
  const used = blocks.filter((b) => b.owners.length).length, fill = blocks.reduce((sum, b) => sum + b.fill, 0);
  return `${used} of ${counted(state.numBlocks, "block")}, ${Math.round((100 * fill) / (state.numBlocks * state.blockSize))} % of slots hold tokens`;
}

export function counts(state) {
  const running = state.withStatus(RUNNING).length, preempted = state.withStatus(PREEMPTED, SWAPPED).length;
  const waiting = state.withStatus(WAITING).length + preempted;
  return `${running} running, ${waiting} waiting${preempted ? ` (${preempted} preempted)` : ""}, ${state.numFinished} finished`;
}

export function create(el, options) {
  const title = h("div", { class: "pe-headline" }), sub = h("div", { class: "pe-sub" });
  const base = h("canvas", { class: "pe-canvas", "aria-hidden": "true" });
  const over = h("canvas", { class: "pe-canvas pe-over", tabindex: 0, role: "img" });
  const stage = h("div", { class: "pe-stage" }, base, over);
  const legend = h("div", { class: "pe-legend" }), note = h("div", { class: "pe-note" });
  el.append(title, sub, stage, legend, note);
  const tip = tooltip(stage);
  let state = null, context = null, blocks = [], hosted = [], written = new Map(), grid = null, width = 0, drawn = [], hovered = null, key = "", flash = null, timer = 0, overlaid = false, listed = "";

  const place = (index) => [(index % grid.columns) * grid.cell, Math.floor(index / grid.columns) * grid.cell];
  const hostTop = () => Math.ceil(grid.shown / grid.columns) * grid.cell + 22;

  function layout() {
    grid = fit(state.numBlocks, Math.min(width, MAX_WIDTH), options.columns ?? null, options.maxHeight ?? MAX_HEIGHT);
    const rows = Math.ceil(grid.shown / grid.columns);
    const extra = context.trace.everSwapped ? 22 + Math.max(1, Math.ceil(hosted.length / grid.columns)) * grid.cell : 0;
    const size = [grid.columns * grid.cell, rows * grid.cell + extra];
    const colours = theme(el), now = JSON.stringify([size, grid, colours, window.devicePixelRatio, state.numBlocks]);
    if (now === key) return colours;
    key = now;
    drawn = [];
    sharp(base, ...size);
    sharp(over, ...size);
    stage.style.width = `${size[0]}px`;
    return colours;
  }

  function draw() {
    if (!state || !width) return;
    const colours = layout(), paint = base.getContext("2d");
    for (const view of blocks.slice(0, grid.shown)) {
      const looks = [...new Set(view.owners.map((id) => state.arrival(id)))].slice(0, 3);
      const dim = context.selected !== null && view.owners.length && !view.owners.some((id) => state.seq(id).requestId === context.selected);
      const by = view.reservedBy === null ? null : state.arrival(view.reservedBy), kept = view.cached ? state.enteredBy.get(view.block) ?? -1 : null;
      const now = [looks, view.fill, view.owners.length, written.get(view.block), dim, by, kept].join("|");
      if (drawn[view.block] === now) continue;
      drawn[view.block] = now;
      const [x, y] = place(view.block);
      paint.clearRect(x, y, grid.cell, grid.cell);
      drawBlock(paint, { x, y, cell: grid.cell, id: view.block, looks: looks.map(look), view, blockSize: state.blockSize, fresh: written.get(view.block), dim, by, kept }, colours);
    }
    if (context.trace.everSwapped) drawHost(paint, colours);
    drawOver(colours);
  }

  function drawHost(paint, colours) {
    const top = hostTop();
    paint.clearRect(0, top - 22, grid.columns * grid.cell, 22 + Math.ceil(Math.max(1, hosted.length) / grid.columns) * grid.cell);
    paint.fillStyle = colours.muted;
    paint.font = `12px ${FONT}`;
    paint.textAlign = "left";
    paint.fillText(hosted.length ? `host memory: ${counted(hosted.length, "swapped block")}` : "host memory: empty", 0, top - 6);
    hosted.forEach((view, i) => {
      const [x, y] = place(i);
      const looks = [...new Set(view.owners.map((id) => state.arrival(id)))].slice(0, 3).map(look);
      drawBlock(paint, { x, y: y + top, cell: grid.cell, id: view.block, looks, view, blockSize: state.blockSize, swapped: true }, colours);
    });
  }

  // What lies over the blocks: the one under the mouse, and copies with their arrow.
  function drawOver(colours) {
    const something = flash !== null || hovered !== null;
    if (!something && !overlaid) return;                    // clearing a canvas costs a repaint of all of it
    overlaid = something;
    const paint = over.getContext("2d"), half = grid.cell / 2;
    paint.clearRect(0, 0, over.width, over.height);
    paint.strokeStyle = colours.ink;
    for (const [from, to] of flash ?? []) {
      if (from >= grid.shown || to >= grid.shown) continue;
      const [x, y] = place(from), [u, v] = place(to);
      paint.lineWidth = 3;
      for (const [a, b] of [[x, y], [u, v]]) paint.strokeRect(a + 2, b + 2, grid.cell - 4, grid.cell - 4);
      arrow(paint, x + half, y + half, u + half, v + half);
      label(paint, (x + u) / 2 + half, (y + v) / 2 + half, "copy", colours);
    }
    if (hovered !== null) {
      const [x, y] = hovered.host ? place(hovered.index) : place(hovered.index), down = hovered.host ? hostTop() : 0;
      paint.lineWidth = 2;
      paint.strokeRect(x + 1, y + down + 1, grid.cell - 2, grid.cell - 2);
    }
  }

  function words() {
    setText(title, headline(state, blocks));
    setText(sub, counts(state));
    over.setAttribute("aria-label", `Block pool at step ${context.step}: ${headline(state, blocks)}; ${counts(state)}. Arrow keys go from block to block, Escape leaves.`);
    const running = state.withStatus(RUNNING), waiting = state.withStatus(WAITING, PREEMPTED, SWAPPED);
    const now = JSON.stringify([running, waiting.map((id) => [id, state.request(id).status]), context.selected, width]);
    if (now !== listed) {
      listed = now;
      legend.replaceChildren(row("running", running), row("waiting", waiting));
    }
    const size = counted(state.blockSize, "slot");
    note.hidden = options.brief;
    setText(note, `a block has ${size}; filled: holds a token; outlined: written in this step; ×n: n block tables refer to the block`
      + (state.entered.size ? "; hatched: nobody's now, found again by the prefix cache" : "") + (grid && grid.shown < state.numBlocks ? `; the first ${grid.shown} blocks are shown` : ""));
  }

  function row(name, ids) {
    const most = Math.max(6, Math.floor((Math.min(width, MAX_WIDTH) - 120) / 26));
    const chips = ids.slice(0, most).map((id) => {
      const request = state.request(id), owner = look(request.arrival);
      const chip = h("button", {
        type: "button", class: `pe-chip pe-${request.status}${context.selected === id ? " pe-chosen" : ""}`, "aria-pressed": String(context.selected === id),
        title: `${owner.letter}: request ${id}, ${request.status}, ${counted(request.numPromptTokens, "prompt token")}`, onclick: () => options.select(id),
      }, owner.letter);
      chip.style.setProperty("--hue", owner.hue);
      chip.style.setProperty("--on-hue", owner.onHue);
      return chip;
    });
    const rest = ids.length > most ? h("span", { class: "pe-sub" }, `+ ${ids.length - most} more`) : null;
    return h("div", { class: "pe-row" }, h("span", { class: "pe-sub pe-key" }, name), ...(ids.length ? chips : [h("span", { class: "pe-sub" }, "nobody")]), rest);
  }

  // -- what the mouse, a finger or the arrow keys point at
  function at(event) {
    const box = over.getBoundingClientRect(), scale = box.width ? over.offsetWidth / box.width : 1;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const column = Math.floor(x / grid.cell);
    if (column < 0 || column >= grid.columns) return null;
    const index = Math.floor(y / grid.cell) * grid.columns + column;
    if (y >= 0 && index < grid.shown) return { index, host: false };
    const below = Math.floor((y - hostTop()) / grid.cell) * grid.columns + column;
    return context.trace.everSwapped && y >= hostTop() && below < hosted.length ? { index: below, host: true } : null;
  }

  function point(found) {
    hovered = found;
    if (!state || !grid) return;
    if (!found) tip.hide();
    else {
      const [x, y] = place(found.index);
      const view = found.host ? hosted[found.index] : blocks[found.index];
      tip.show(describe(state, view, context.words, found.host), x + grid.cell / 2, y + grid.cell / 2 + (found.host ? hostTop() : 0));
    }
    drawOver(theme(el));
  }

  const listeners = {
    pointermove: (event) => { if (state) point(at(event)); },
    pointerleave: () => point(null),
    pointerdown: (event) => { if (state) point(at(event)); },
    click(event) {
      const found = state && at(event), view = found && (found.host ? hosted : blocks)[found.index];
      if (view) options.select(view.owners.length ? state.seq(view.owners[0]).requestId : null);
    },
    focus: () => { if (state && !hovered && over.matches(":focus-visible")) point({ index: 0, host: false }); },
    blur: () => point(null),
    keydown(event) {
      const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns }[event.key];
      if (event.key === "Escape") over.blur();
      else if (move && hovered) {
        const index = hovered.index + move;
        if (index >= 0 && index < (hovered.host ? hosted.length : grid.shown)) point({ ...hovered, index });
        event.preventDefault();
      } else return;
      event.stopPropagation();
    },
  };
  for (const [name, listener] of Object.entries(listeners)) over.addEventListener(name, listener);
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });

  return {
    update(newState, newContext) {
      state = newState;
      context = newContext;
      blocks = state.blocks();
      hosted = state.hostBlocks();
      written = state.justWritten();
      if (context.moved) {
        clearTimeout(timer);
        const copies = context.forwards || context.playing ? context.trace.events(context.step).filter((event) => event[0] === "BlockCopied").map((event) => [event[3], event[4]]) : [];
        flash = copies.length ? copies.slice(0, 24) : null;
        if (flash && context.animate) timer = setTimeout(() => { flash = null; options.redraw(); }, FLASH_MS);
      }
      draw();
      words();
      if (hovered) point(hovered.index < (hovered.host ? hosted.length : grid?.shown ?? 0) ? hovered : null);
    },
    destroy() {
      clearTimeout(timer);
      unwatch();
      el.replaceChildren();
    },
  };
}

// What the tooltip of a block says.
export function describe(state, view, words, host = false) {
  const name = host ? `host block ${view.block}` : `block ${view.block}`;
  if (!view.owners.length) {
    if (view.reservedBy !== null && view.reservedBy !== undefined) return [`${name}: set aside for the branches of ${look(state.arrival(view.reservedBy)).letter}`];
    if (!view.cached) return [`${name}: free`];
    const by = state.enteredBy.get(view.block);
    return [`${name}: cached${by === undefined ? "" : `, text of ${look(by).letter}`}`, "nobody uses it; the prefix cache finds it until it is handed out"];
  }
  const seq = state.seq(view.owners[0]), owner = look(state.request(seq.requestId).arrival).letter;
  const lines = [`${name}: ${owner} (request ${seq.requestId}), logical block ${view.logical}`,
    `${view.fill} of ${state.blockSize === 1 ? "1 slot holds a token" : `${state.blockSize} slots hold tokens`}`];
  if (host) lines.push("swapped out: it comes back when there is room");
  if (view.owners.length > 1) lines.push(`${view.owners.length} block tables refer to it: ${[...new Set(view.owners.map((id) => look(state.arrival(id)).letter))].sort().join(", ")}`);
  if (!host && state.entered.has(view.block)) lines.push("the prefix cache knows it");
  if (view.fill) {
    const tokens = seq.tokens.slice(view.logical * state.blockSize, view.logical * state.blockSize + Math.min(view.fill, 16)), more = view.fill > 16 ? " ..." : "";
    const known = tokens.every((token) => token in words);
    lines.push(known ? `text: ${JSON.stringify(tokens.map((token) => words[token]).join(""))}${more}` : `tokens: ${tokens.join(" ")}${more}`);
  }
  return lines;
}
