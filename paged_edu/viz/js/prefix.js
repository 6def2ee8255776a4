// The prefix cache as a tree of blocks: who uses which beginning of a text, what newcomers found, what is overwritten first (Paper §4.4).
import { h, s, setText, tooltip, watchWidth } from "./dom.js";
import { lanesOf } from "./history.js";
import { layOut, rowOf } from "./layout.js";
import { look, OUTLINE } from "./palette.js";
import { counted } from "./sentence.js";

export const basis = 620;
export const grow = 2;

const HIGH = 32, ROW = 40, MOST_ROWS = 10, MOST_STRIP = 22;

// For each salt the texts that can be found: [salt, Map of entry of the last block -> blocks].
export function sections(state) {
  const blocks = new Map([...state.entries].map(([block, entry]) => [entry.entry, block])), inner = new Set([...state.entries.values()].map((entry) => entry.parent)), found = new Map();
  for (const [block, entry] of state.entries) {
    if (inner.has(entry.entry)) continue;
    const path = [block];
    let at = entry;
    while (blocks.has(at.parent)) {
      path.push(blocks.get(at.parent));
      at = state.entries.get(path[path.length - 1]);
    }
    if (at.parent !== 0) continue;
    if (!found.has(entry.salt)) found.set(entry.salt, new Map());
    found.get(entry.salt).set(entry.entry, path.reverse());
  }
  const order = (salt) => salt ?? "";
  return [...found].map(([salt, paths]) => [salt, new Map([...paths].sort((a, b) => a[0] - b[0]))])
    .sort(([a], [b]) => (a !== null) - (b !== null) || (order(a) < order(b) ? -1 : order(a) > order(b) ? 1 : 0));
}

// Blocks that are cached and cannot be found: the beginning of their text is gone.
export function lost(state, found = sections(state)) {
  const reached = new Set(found.flatMap(([, paths]) => [...paths.values()].flat()));
  return [...state.entries.keys()].filter((block) => !reached.has(block));
}

// Block -> arrival numbers of the requests whose tables refer to it.
export function users(state) {
  const found = new Map();
  for (const [seqId, seq] of [...state.sequences].sort((a, b) => a[0] - b[0])) {
    const arrival = state.arrival(seqId);
    for (const block of seq.blocks) {
      const there = found.get(block);
      if (!there) found.set(block, [arrival]);
      else if (!there.includes(arrival)) there.push(arrival);
    }
  }
  return found;
}

export function headline(state, idle = state.cachedBlocks().length) {
  if (!state.entries.size) return "the prefix cache is empty: it keeps blocks that are full and computed";
  return `${counted(state.entries.size, "block")} can be found: ${state.entries.size - idle} in use, ${idle} cached for later`;
}

// What the latest admissions found.
export function hits(lanes, state) {
  const all = lanes.flatMap((lane) => lane.cached.map(([when, total, cached]) => ({ lane, when, total, cached }))).filter((one) => one.when <= state.step);
  if (!all.length) return "nobody has been admitted yet";
  const latest = Math.max(...all.map((one) => one.when));
  const parts = all.filter((one) => one.when === latest).map(({ lane, total, cached }) =>
    `${look(lane.arrival).letter} found ${cached || "none"} of its ${counted(total, "token")}${cached ? ` in the cache (${counted(Math.ceil(cached / state.blockSize), "block")})` : ""}`);
  return `step ${latest}: ${parts.slice(0, 4).join("; ")}${parts.length > 4 ? ` and ${parts.length - 4} more` : ""}`;
}

export function create(el, options) {
  const title = h("div", { class: "pe-headline" }), sub = h("div", {}), picture = s("svg", { class: "pe-picture", role: "group" });
  const stage = h("div", { class: "pe-stage" }, picture), news = h("div", { class: "pe-note" }), note = h("div", { class: "pe-note" });
  el.append(title, sub, stage, news, note);
  const tip = tooltip(stage);
  let state = null, context = null, width = 0, used = new Map(), wide = 48, drawn = new Map(), before = new Map();
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });

  function draw() {
    if (!state || !width) return;
    const found = hits(lanesOf(context.trace), state), all = sections(state), gone = lost(state, all), cached = state.cachedBlocks(), said = headline(state, cached.length), news_ = [];
    used = users(state);
    setText(title, said);
    setText(sub, found);
    if (state.evicted.length) news_.push(`overwritten in this step: block ${state.evicted.slice(0, 12).join(", ")}${state.evicted.length > 12 ? " ..." : ""}`);
    if (gone.length) news_.push(`kept but out of reach, the beginning of the text is gone: block ${gone.slice(0, 12).join(", ")}`);
    setText(news, news_.join("; "));
    setText(note, options.brief ? "" : `a block has ${counted(state.blockSize, "slot")}; letters: who uses it now; hatched: nobody does, the letter says whose text it is`);
    picture.setAttribute("aria-label", `Prefix cache at step ${context.step}: ${said}; ${found}`);
    paint(all, cached);
  }

  function paint(all, cached) {
    const focused = picture.contains(document.activeElement) ? document.activeElement.dataset.block : null, narrow = width < 520;
    const pitch = narrow ? 52 : 66, labels = narrow ? 78 : 170, room = Math.min(width, 1000), parts = [];
    wide = narrow ? 40 : 48;
    [drawn, before] = [new Map(), drawn];
    let y = 0, right = 300;
    for (const [salt, paths] of all) {
      if (all.length > 1 || salt !== null) {
        parts.push(words(0, y + 13, salt === null ? "no salt" : `salt ${JSON.stringify(salt)}: found by requests with the same salt only`, 12));
        y += 20;
      }
      const shown = kept(paths), tree = layOut(shown, Math.max(3, Math.floor((room - labels) / pitch)));
      parts.push(...branch(tree, shown, y, pitch, narrow));
      y += tree.order.length * ROW;
      right = Math.max(right, tree.columns.length * pitch + labels);
      if (paths.size > shown.size) {
        parts.push(words(0, y + 12, `and ${paths.size - shown.size} more texts`, 12));
        y += 18;
      }
      y += 6;
    }
    const across = Math.floor((Math.max(right, room) - 40) / 34), strip = cached.slice(0, Math.min(MOST_STRIP, across));
    const free = state.numBlocks - used.size - cached.length;
    parts.push(words(0, y + 13, `next to be taken: ${counted(free, "free block")}${cached.length ? narrow ? ", then" : ", then the one not used for the longest time" : ""}`, 12));
    strip.forEach((block, i) => parts.push(small(block, i, y + 20)));
    if (!cached.length) parts.push(words(0, y + 36, "no cached block is waiting to be overwritten", 11));
    if (cached.length > strip.length) parts.push(words(strip.length * 34 + 2, y + 36, `+ ${cached.length - strip.length}`, 11));
    y += 50;
    const size = [Math.max(right, strip.length * 34 + 36, narrow ? 0 : 430), y];
    picture.setAttribute("viewBox", `-1 0 ${size[0]} ${size[1]}`);
    picture.setAttribute("width", size[0]);
    picture.setAttribute("height", size[1]);
    picture.replaceChildren(...parts);
    if (focused) picture.querySelector(`[data-block="${focused}"]`)?.focus();
  }

  const words = (x, y, text, size, more = {}) => s("text", { x, y, "font-size": size, fill: "var(--pe-muted)", ...more }, text);

  // The texts that are drawn: those in use, then the newest ones.
  function kept(paths) {
    const idle = (leaf) => !used.has(paths.get(leaf)[paths.get(leaf).length - 1]);
    const order = [...paths.keys()].sort((a, b) => idle(a) - idle(b) || b - a).slice(0, MOST_ROWS).sort((a, b) => a - b);
    return new Map(order.map((leaf) => [leaf, paths.get(leaf)]));
  }

  function branch(tree, paths, top, pitch, narrow) {
    const place = (cell) => [cell.column * pitch, top + (rowOf(cell) + 0.5) * ROW], parts = [];
    let lines = "";
    for (const [a, b] of tree.edges) {
      const [x, y] = place(tree.cells[a]), [u, v] = place(tree.cells[b]), column = tree.cells[a].column + 1;
      lines += `M${x + wide} ${y}H${u - (pitch - wide) / 2}V${v}H${u}`;
      if (tree.cells[b].column > column) parts.push(words(column * pitch + wide / 2, v - 5, `+ ${tree.columns[column][1]}`, 11, { "text-anchor": "middle" }));
    }
    parts.unshift(s("path", { d: lines, stroke: OUTLINE, "stroke-width": 1.3, fill: "none" }));
    for (const cell of tree.cells) parts.push(block(cell.block, ...place(cell)));
    tree.order.forEach((leaf, row) => {
      const [x, y] = place(tree.cells[tree.ends[row]]), count = paths.get(leaf).length;
      parts.push(s("text", { x: x + wide + 10, y: y + 4, "font-size": 12, fill: "var(--pe-ink)" }, narrow ? counted(count * state.blockSize, "token") : `${counted(count, "block")}, ${counted(count * state.blockSize, "token")}`));
    });
    return parts;
  }

  function block(id, x, middle) {
    const y = middle - HIGH / 2, arrivals = used.get(id) ?? [], owners = arrivals.slice(0, 3).map(look), by = state.enteredBy.get(id), hue = owners[0]?.hue ?? (by === undefined ? OUTLINE : look(by).hue);
    const mine = context.selected === null || arrivals.some((a) => state.requests.get(context.selected)?.arrival === a);
    const key = [id, x, middle, wide, arrivals, by, mine, state.entries.get(id).entry].join("|");
    drawn.set(key, before.get(key) ?? made(id, x, y, middle, arrivals, owners, by, hue, mine));      // most blocks look as in the step before
    return drawn.get(key);
  }

  function made(id, x, y, middle, arrivals, owners, by, hue, mine) {
    const lines = told(id, arrivals, by), show = () => tip.show(lines, x + wide / 2, middle), label = String(id);
    const parts = [s("rect", { x, y, width: wide, height: HIGH, rx: 5, fill: "var(--pe-ground)" }),
      s("rect", { x, y, width: wide, height: HIGH, rx: 5, fill: hue, "fill-opacity": owners.length ? 0.3 : 0.12, stroke: OUTLINE })];
    if (owners.length > 1) parts.push(s("rect", { x: x + 2.5, y: y + 2.5, width: wide - 5, height: HIGH - 5, rx: 3, fill: "none", stroke: OUTLINE }));
    owners.forEach((owner, i) => {
      const chip = 13 + 6 * (owner.letter.length - 1), step = (wide - 5) / 3 - 0.5;
      parts.push(s("rect", { x: x + 3 + i * step, y: y + 3, width: chip, height: 13, rx: 3, fill: owner.hue }),
        s("text", { x: x + 3 + i * step + chip / 2, y: y + 13, "font-size": 10, "font-weight": 700, "text-anchor": "middle", fill: owner.onHue }, owner.letter));
    });
    if (!owners.length) {
      parts.push(s("path", { d: rising(x + 1, y + 1, wide - 2, HIGH - 2), stroke: hue, "stroke-opacity": 0.6 }));
      if (by !== undefined) {
        const name = look(by).letter, chip = 13 + 6 * (name.length - 1);
        parts.push(s("rect", { x: x + 3, y: y + 3, width: chip, height: 13, rx: 3, fill: "var(--pe-ground)" }),
          s("text", { x: x + 3 + chip / 2, y: y + 13, "font-size": 10, "font-weight": 700, "text-anchor": "middle", fill: "var(--pe-ink)" }, name));
      }
    }
    if (arrivals.length > 3) parts.push(s("text", { x: x + 4, y: y + HIGH - 4, "font-size": 9.5, "font-weight": 700, fill: "var(--pe-ink)" }, `×${arrivals.length}`));
    parts.push(s("rect", { x: x + wide - 6 * label.length - 5, y: y + HIGH - 13, width: 6 * label.length + 3, height: 11, rx: 2, fill: "var(--pe-ground)", "fill-opacity": 0.75 }),
      s("text", { x: x + wide - 4, y: y + HIGH - 4, "font-size": 9.5, "text-anchor": "end", fill: "var(--pe-ink)" }, label));
    return s("g", {
      class: "pe-entry", tabindex: 0, role: "img", "aria-label": lines.join(". "), "data-block": id, opacity: mine ? 1 : 0.3, onpointerenter: show, onpointerdown: show,
      onpointerleave: () => tip.hide(), onfocus: (event) => { if (event.target.matches(":focus-visible")) show(); }, onblur: () => tip.hide(),
      onclick: () => { if (arrivals.length) options.select([...state.requests].find(([, r]) => r.arrival === arrivals[0])[0]); },
      onkeydown: (event) => { if (event.key === "Escape") { tip.hide(); event.stopPropagation(); } },
    }, ...parts);
  }

  function told(id, arrivals, by) {
    const { tokens } = state.entries.get(id), some = tokens.slice(0, 16), more = tokens.length > 16 ? " ..." : "";
    const text = some.every((token) => token in context.words) ? `text: ${JSON.stringify(some.map((token) => context.words[token]).join(""))}${more}` : `tokens: ${some.join(" ")}${more}`;
    return [`block ${id}${by === undefined ? "" : `, computed by ${look(by).letter}`}`,
      arrivals.length ? `in use by ${arrivals.map((a) => look(a).letter).join(", ")}` : "nobody uses it: it can be found until it is overwritten", text];
  }

  // A cached block in the strip.
  function small(id, place, y) {
    const by = state.enteredBy.get(id), x = place * 34, hue = by === undefined ? OUTLINE : look(by).hue;
    return s("g", {}, s("title", {}, `block ${id}, number ${place + 1} to be overwritten`), s("rect", { x, y, width: 30, height: 24, rx: 4, fill: hue, "fill-opacity": 0.18, stroke: OUTLINE }),
      s("text", { x: x + 4, y: y + 11, "font-size": 9.5, "font-weight": 700, fill: "var(--pe-ink)" }, by === undefined ? "" : look(by).letter),
      s("text", { x: x + 27, y: y + 21, "font-size": 9.5, "text-anchor": "end", fill: "var(--pe-ink)" }, String(id)));
  }

  function rising(x, y, width_, height, gap = 6) {
    let path = "";
    for (let offset = gap / 2; offset < width_ + height; offset += gap) {
      const [x0, y0] = offset <= width_ ? [offset, 0] : [width_, offset - width_], [x1, y1] = offset <= height ? [0, offset] : [offset - height, height];
      path += `M${(x + x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
    }
    return path;
  }

  return {
    update(newState, newContext) {
      [state, context] = [newState, newContext];
      if (context.moved) tip.hide();
      draw();
    },
    destroy() {
      unwatch();
      el.replaceChildren();
    },
  };
}
