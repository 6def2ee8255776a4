// The four parts of Paper Fig. 2 as a bar: what the slots of the cache hold. Several logs are several of these, one below the other.
import { h, s, setText, tooltip, watchWidth } from "./dom.js";
import { memoryReport } from "./memory.js";
import { OUTLINE, PARTS as HUES } from "./palette.js";
import { counts } from "./pool.js";
import { counted, percent } from "./sentence.js";

export const basis = 700;
export const grow = 2;

const BAR = 44, AXIS = 26;
export const PARTS = [
  { field: "tokens", name: "token states", meaning: "hold the keys and values of a token" },
  { field: "reserved", name: "reservation", meaning: "empty now, needed later if requests run to their longest; nobody else can have them" },
  { field: "internal", name: "internal fragmentation", meaning: "allocated and never to be used" },
  { field: "external", name: "external or free", meaning: "belong to nobody, or only to an allocator that rounds" },
];

export const headline = (report) => `${percent(report.tokens, report.total)} of ${counted(report.total, "slot")} hold tokens`;

export function numbers(report) {
  return `slots: ${PARTS.map(({ field, name }) => `${name} ${report[field]}`).join(", ")}${report.cached ? ` (${report.cached} of them in the prefix cache)` : ""}`;
}

// A stretch of slots with the pattern of its part.
function stretch(field, x, y, width, height) {
  const hue = HUES[field];
  if (field === "tokens") return [s("rect", { x, y, width, height, fill: hue })];
  const ground = s("rect", { x, y, width, height, fill: hue, "fill-opacity": field === "reserved" ? 0.35 : 0.1 });
  const marks = field === "reserved" ? dots(x, y, width, height) : diagonals(x, y, width, height, field === "external");
  return [ground, s("path", { d: marks, stroke: hue, "stroke-width": field === "reserved" ? 1.6 : 1, "stroke-linecap": "round", fill: "none" })];
}

function dots(x, y, width, height, gap = 5) {
  const across = Math.floor(width / gap), down = Math.floor(height / gap), x0 = x + (width - (across - 1) * gap) / 2, y0 = y + (height - (down - 1) * gap) / 2;
  let path = "";
  for (let j = 0; j < down; j++) for (let i = 0; i < across; i++) path += `M${(x0 + i * gap).toFixed(1)} ${(y0 + j * gap).toFixed(1)}h.01`;
  return path;
}

function diagonals(x, y, width, height, crossed, gap = 7) {
  let path = "";
  for (let offset = gap / 2; offset < width + height; offset += gap) {
    const [x0, y0] = offset <= width ? [offset, 0] : [width, offset - width], [x1, y1] = offset <= height ? [0, offset] : [offset - height, height];
    path += `M${(x + x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
    if (crossed) path += `M${(x + width - x0).toFixed(1)} ${(y + y0).toFixed(1)}L${(x + width - x1).toFixed(1)} ${(y + y1).toFixed(1)}`;
  }
  return path;
}

export function create(el, options) {
  // Of several rows the last one has axis and legend for all.
  const rest = options.rest ?? true, explained = options.rest ?? !options.brief, named = options.label ? `${options.label}: ` : "";
  const title = h("div", { class: "pe-headline" }), picture = s("svg", { class: "pe-picture", role: "group" });
  const stage = h("div", { class: "pe-stage" }, picture), note = h("div", { class: "pe-note" });
  const legend = h("div", { class: "pe-key-list" }, ...PARTS.map(({ field, name }) => h("span", { class: "pe-key-item" },
    s("svg", { width: 30, height: 16, "aria-hidden": "true" }, ...stretch(field, 0, 0, 30, 16), s("rect", { x: 0.5, y: 0.5, width: 29, height: 15, fill: "none", stroke: OUTLINE })), name)));
  el.append(title, stage, note, ...(explained ? [legend] : []));
  const tip = tooltip(stage);
  let width = 0, shown = null, key = "";
  const unwatch = watchWidth(el, (now) => { width = now; options.redraw(); });

  function draw(report) {
    const wide = Math.max(120, Math.min(width, 1100) - 4), axis = rest ? AXIS : 0, now = JSON.stringify([report, wide]);
    if (now === key) return;
    key = now;
    const tall = BAR + axis + 2, focused = picture.contains(document.activeElement) ? document.activeElement.dataset.field : null;
    picture.setAttribute("viewBox", `-2 -1 ${wide + 4} ${tall}`);
    picture.setAttribute("width", wide + 4);
    picture.setAttribute("height", tall);
    picture.setAttribute("aria-label", `${named || "Memory: "}${headline(report)}; ${numbers(report)}`);
    let at = 0;
    const parts = PARTS.map((part) => {
      const share = report[part.field] / report.total, x = at, span = share * wide;
      at += span;
      return segment(part, report, x, span);
    });
    picture.replaceChildren(...parts, s("rect", { x: 0, y: 0, width: wide, height: BAR, rx: 3, fill: "none", stroke: OUTLINE, "pointer-events": "none" }), ...(rest ? ticks(report, wide) : []));
    if (focused) picture.querySelector(`[data-field="${focused}"]`)?.focus();
  }

  function segment(part, report, x, span) {
    const slots = report[part.field], lines = [`${part.name}: ${counted(slots, "slot")}, ${percent(slots, report.total)}`, part.meaning];
    if (part.field === "external" && report.cached) lines.push(`${counted(report.cached, "slot")} of them still hold text that the prefix cache can serve`);
    const show = () => tip.show(lines, x + span / 2, BAR - 14), words = fitting(part.name, percent(slots, report.total), span);
    const wide = 7.4 * words.length + 14, middle = x + span / 2;
    return s("g", {
      class: "pe-entry", tabindex: span > 0 ? 0 : -1, role: "img", "aria-label": lines.join(". "), "data-field": part.field,
      onpointerenter: show, onpointerdown: show, onpointerleave: () => tip.hide(), onfocus: (event) => { if (event.target.matches(":focus-visible")) show(); }, onblur: () => tip.hide(),
      onkeydown: (event) => { if (event.key === "Escape") { tip.hide(); event.stopPropagation(); } },
    },
    s("rect", { x, y: 0, width: span, height: BAR, fill: "transparent", stroke: span > 0 && x > 0 ? OUTLINE : "none" }),
    ...(span > 0 ? stretch(part.field, x, 0, span, BAR) : []),
    ...(words ? [s("rect", { x: middle - wide / 2, y: BAR / 2 - 10, width: wide, height: 20, rx: 10, fill: "var(--pe-ground)" }),
      s("text", { x: middle, y: BAR / 2 + 4.5, "text-anchor": "middle", "font-size": 12.5, "font-weight": 600, fill: "var(--pe-ink)" }, words)] : []));
  }

  const fitting = (name, share, span) => [`${name} ${share}`, share, share.slice(0, -2)].find((words) => 7.4 * words.length + 14 <= span - 4) ?? "";

  function ticks(report, wide) {
    const steps = wide < 440 ? 2 : 4, parts = [];
    for (let i = 0; i <= steps; i++) {
      const x = (wide * i) / steps, share = (100 * i) / steps, slots = i ? ` = ${counted(Math.floor((report.total * i) / steps), "slot")}` : "";
      parts.push(s("path", { d: `M${x} ${BAR}v5`, stroke: OUTLINE }));
      parts.push(s("text", { x, y: BAR + 19, "font-size": 11, "text-anchor": i === 0 ? "start" : i === steps ? "end" : "middle", fill: "var(--pe-muted)" }, `${share} %${slots}`));
    }
    return parts;
  }

  return {
    update(state, context) {
      if (!width) return;
      shown = memoryReport(state);
      draw(shown);
      setText(title, named + headline(shown));
      setText(note, `${numbers(shown)}; ${counts(state)}`);
      if (context.moved) tip.hide();
    },
    destroy() {
      unwatch();
      el.replaceChildren();
    },
  };
}
