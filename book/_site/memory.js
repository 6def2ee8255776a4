// The slots of one memory as a map: 60 blocks in four rows, what each slot is for, who waits, and the numbers of this moment.
//
// options: slab (blocks of a contiguous reservation, 0 under paging), maxLen (slots of a slab), written (tokens generated so far, by step).
import { h, setText } from "./dom.js";
import { OUTLINE, PARTS, look } from "./palette.js";

const CELL = 28, ROW = 54, GAP = 3, COLUMNS = 16;
export const basis = 300;

const box = (x, y, width, height, fill, more = "") => `<rect x="${x}" y="${y}" width="${Math.max(0, width)}" height="${height}" fill="${fill}" ${more}/>`;
const frame = (x, y, width, height) => box(x, y, width, height, "none", `rx="3" stroke="${OUTLINE}" stroke-width="1.1"`);

// A stretch of slots: "token" solid, "reserved" (needed later) dotted, "internal" (never needed) hatched, "free" cross-hatched.
export function part(x, y, width, height, kind, hue) {
  if (width <= 0.01) return "";
  if (kind === "token") return box(x, y, width, height, hue);
  const ground = box(x, y, width, height, hue, `fill-opacity="${kind === "reserved" ? 0.35 : 0.12}"`);
  return `${ground}<path d="${kind === "reserved" ? dots(x, y, width, height) : lines(x, y, width, height, kind === "free")}" stroke="${hue}" stroke-width="${kind === "reserved" ? 1.7 : 1}" stroke-linecap="round" fill="none"/>`;
}

function dots(x, y, width, height) {
  let path = "";
  for (let j = 4; j < height; j += 6) for (let i = 2.5; i < width; i += 5) path += `M${(x + i).toFixed(1)} ${(y + j).toFixed(1)}h.01`;
  return path;
}

function lines(x, y, width, height, crossed) {
  let path = "";
  for (let offset = 4; offset < width + height; offset += 7) {
    const [x0, y0] = offset <= width ? [offset, 0] : [width, offset - width];
    const [x1, y1] = offset <= height ? [0, offset] : [offset - height, height];
    path += `M${(x + x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
    if (crossed) path += `M${(x + width - x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + width - x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
  }
  return path;
}

function chip(x, y, arrival, side = 17) {
  const owner = look(arrival);
  return `<rect x="${x}" y="${y}" width="${side}" height="${side}" rx="3" fill="${owner.hue}"/>`
    + `<text x="${x + side / 2}" y="${y + 0.79 * side}" fill="${owner.onHue}" font-size="${0.8 * side}" font-weight="700" text-anchor="middle">${owner.letter}</text>`;
}

export function create(el, options) {
  const picture = h("div", { class: "pm-picture", role: "img" });
  const share = h("span", { class: "pm-share" }), counts = h("div", { class: "pm-counts" });
  const queue = h("div", { class: "pm-queue" });
  el.append(picture, h("div", { class: "pm-line" }, share, h("span", { class: "pm-of" }, "of the slots hold tokens")), counts, queue);

  function draw(state) {
    const { blockSize, numBlocks } = state, slot = (CELL - GAP) / blockSize, rows = Math.ceil(numBlocks / COLUMNS);
    const end = new Map();                                  // block -> slots that will ever hold a token
    for (const seq of state.sequences.values()) {
      const request = state.request(seq.requestId), last = request.numPromptTokens + request.maxTokens - 1;
      seq.blocks.forEach((block, index) => end.set(block, Math.min(blockSize, Math.max(0, last - index * blockSize))));
    }
    const fresh = state.justWritten(), whole = options.slab ? Math.floor(numBlocks / options.slab) * options.slab : numBlocks;
    let svg = "", held = 0;
    for (const view of state.blocks()) {
      const column = view.block % COLUMNS, x = column * CELL, y = Math.floor(view.block / COLUMNS) * ROW;
      const joined = options.slab && view.block < whole && (view.block + 1) % options.slab !== 0;     // a slab is drawn in one piece
      const width = joined ? CELL : CELL - GAP, height = ROW - GAP, pitch = width / blockSize;
      if (view.owners.length) {
        const owner = look(state.arrival(view.owners[0])), stop = end.get(view.block);
        held += view.fill;
        svg += part(x, y, view.fill * pitch, height, "token", owner.hue)
          + part(x + view.fill * pitch, y, (stop - view.fill) * pitch, height, "reserved", owner.hue)
          + part(x + stop * pitch, y, (blockSize - stop) * pitch, height, "internal", owner.hue);
        const [first, after] = fresh.get(view.block) ?? [0, 0];
        if (after > first) svg += box(x + first * pitch, y + height - 6, Math.max(2, (after - first) * pitch), 6, "var(--pe-ink)");
        if (!options.slab || view.block % options.slab === 0) svg += chip(x, y, state.arrival(view.owners[0]));
      } else if (view.block >= whole) svg += part(x, y, view.block === numBlocks - 1 ? CELL - GAP : CELL, height, "free", PARTS.external);
      if (!options.slab) svg += frame(x, y, CELL - GAP, height);
    }
    if (options.slab) for (let first = 0; first < numBlocks; first += options.slab) {
      svg += frame(0, Math.floor(first / COLUMNS) * ROW, Math.min(options.slab, numBlocks - first) * CELL - GAP, ROW - GAP);
    }
    picture.innerHTML = `<svg viewBox="-1 -1 ${COLUMNS * CELL} ${rows * ROW}" width="100%" aria-hidden="true">${svg}</svg>`;
    return held / (numBlocks * blockSize);
  }

  return {
    update(state, context) {
      const held = draw(state), percent = `${(100 * held).toFixed(0)} %`;
      const running = state.withStatus("running").length, waiting = state.withStatus("waiting", "preempted", "swapped");
      const written = options.written[Math.min(context.step, options.written.length - 1)];
      setText(share, percent);
      setText(counts, `${running} running · ${state.numFinished} finished · ${written} tokens written`);
      queue.replaceChildren(h("span", {}, "waiting"), ...(waiting.length ? waiting.map((id) => {
        const request = state.request(id), hue = look(request.arrival);
        return h("b", { class: request.status === "waiting" ? "" : "pm-back", style: `--hue:${hue.hue}`, title: request.status === "waiting" ? "not yet begun" : "stepped back" }, hue.letter);
      }) : [h("span", { class: "pm-nobody" }, "nobody")]));
      picture.setAttribute("aria-label", `${percent} of ${state.numBlocks * state.blockSize} slots hold tokens; ${running} requests run, ${waiting.length} wait, ${state.numFinished} are finished`);
    },
    destroy() {},
  };
}
