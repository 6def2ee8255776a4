// Latency curves with a threshold that is dragged (LatencyCurves): plot, crossings in a table, and the run behind a point of ours.
import { h, s, setText, tooltip, watchWidth } from "./dom.js";
import { clipped, joined, mark, nice } from "./axes.js";
import { cells, compare, fixed, leading, rateText, told } from "./crossings.js";
import { OUTLINE } from "./palette.js";
import { runPanel } from "./runs.js";

export const basis = 860;

const TOP = 1.1, HEIGHT = 330, MARGIN = { left: 58, right: 64, top: 18, bottom: 46 };
const HINT = "Click a filled mark: the run behind it is shown here.";

export function create(el, options) {
  const { systems } = options, hasRuns = systems.some(({ runs }) => runs.length), hasPaper = systems.some(({ paper }) => paper.length);
  const first = leading(systems.map(({ name }) => name)), largest = Math.max(...systems.flatMap(({ ours, paper }) => [...ours, ...paper].map(([x]) => x)));
  const across = nice(largest), said = h("div", { class: "pe-told", role: "status", "aria-live": "polite" }), readout = h("output", { class: "pe-readout" });
  const slider = h("input", { type: "range", class: "pe-slider", min: 0.05, max: 1, step: 0.01, "aria-label": "threshold, seconds a token", oninput: () => options.seek(Math.round(100 * slider.value)), onkeydown: (event) => event.stopPropagation() });
  const plot = s("svg", { class: "pe-picture pe-plot", role: "group", "aria-label": `${options.heading}: normalized latency over request rate` }), stage = h("div", { class: "pe-stage" }, plot);
  const body = h("tbody", {}), tip = tooltip(stage), panel = hasRuns ? runPanel(HINT) : null;
  const head = ["system", "ours", ...(hasPaper ? ["paper", "error"] : []), `${first} over it`, ...(hasPaper ? ["paper’s"] : [])];
  const table = h("table", { class: "pe-crossings" }, h("caption", {}, "Rate at which a curve crosses the line [requests/s]"),
    h("thead", {}, h("tr", {}, ...head.map((words) => h("th", { scope: "col" }, words)))), body);
  el.append(
    h("div", { class: "pe-headline" }, options.heading), keyed(systems, hasPaper),
    h("div", { class: "pe-beside" },
      h("div", { class: "pe-left" }, h("label", { class: "pe-range pe-steps" }, h("span", {}, "threshold"), slider, readout), said, stage, h("div", { class: "pe-scroll" }, table)),
      panel ? h("div", { class: "pe-right" }, panel.el) : null));

  let width = 0, level = 0, chosen = null, line = null, points = [], stop = [];
  const at = (x, y) => [MARGIN.left + ((width - MARGIN.left - MARGIN.right) * x) / across[across.length - 1], HEIGHT - MARGIN.bottom - ((HEIGHT - MARGIN.bottom - MARGIN.top) * Math.min(y, TOP)) / TOP];
  const levelAt = (y) => Math.min(100, Math.max(5, Math.round((100 * TOP * (HEIGHT - MARGIN.bottom - y)) / (HEIGHT - MARGIN.bottom - MARGIN.top))));

  function choose(point) {
    chosen = point;
    const { system, index } = point;
    panel.show(system.runs[index], system.hue);
    tip.hide();
    show(point);
  }

  // The first run to be shown: the leading system's where its curve has passed the line.
  function begin() {
    const own = points.filter(({ system }) => system.name === first), among = own.length ? own : points;
    return among.find(({ system, index }) => system.ours[index][1] > level / 100) ?? among[among.length - 1];
  }

  // One point alone is in the order of the tab key; arrows go from it to the others.
  function show(point) {
    for (const other of points) {
      const it = same(other, point);
      other.el.setAttribute("tabindex", it ? 0 : -1);
      other.el.setAttribute("aria-pressed", String(it));
      other.el.classList.toggle("pe-chosen", it);
    }
  }

  function keys(event, point) {
    event.stopPropagation();
    if (event.key === "Escape") return tip.hide();
    if (event.key === "Enter" || event.key === " ") choose(point);
    else {
      const with_ = systems.filter(({ runs }) => runs.length), row = with_.indexOf(point.system);
      const to = {
        ArrowLeft: [row, point.index - 1], ArrowRight: [row, point.index + 1], ArrowUp: [row - 1, point.index], ArrowDown: [row + 1, point.index], Home: [row, 0], End: [row, Infinity],
      }[event.key];
      if (!to) return;
      const system = with_[Math.min(with_.length - 1, Math.max(0, to[0]))], index = Math.min(system.runs.length - 1, Math.max(0, to[1]));
      const next = points.find((other) => same(other, { system, index }));
      choose(next);
      next.el.focus();
    }
    event.preventDefault();
  }

  // Marks may lie closer together than a finger is wide.
  function nearest(event) {
    const { left, top } = plot.getBoundingClientRect(), far = ({ u, v }) => Math.hypot(event.clientX - left - u, event.clientY - top - v);
    return points.reduce((best, point) => (best === null || far(point) < far(best) ? point : best), null);
  }

  function place(system, points_, ours) {
    return points_.map(([x, y], index) => {
      const [u, v] = at(x, y), whose = ours ? "ours" : "paper", words = `${system.name}, ${whose}: ${rateText(x)} requests/s, ${fixed(y, 3)} s/token`;
      const active = ours && system.runs.length > 0, more = y > TOP ? " (above the axis)" : "";
      const shape = s("path", { d: mark(system.mark, u, v, ours ? 4.6 : 5), fill: ours ? system.hue : "var(--pe-ground)", stroke: system.hue, "stroke-width": 1.8 });
      const above = y > TOP ? s("path", { d: `M${u} ${v - 14}l-3.5 5h7z`, fill: system.hue }) : null;
      const tell = () => tip.show([words + more, ...(active ? ["click: its run"] : [])], u, v);
      const place_ = s("g", { class: `pe-point${active ? " pe-active" : ""}`, ...(active ? { role: "button", tabindex: -1, "aria-label": words, "aria-pressed": "false" } : { "aria-hidden": "true" }),
        onpointermove: (event) => (active ? nearest(event).tell : tell)(), onpointerleave: () => tip.hide(), onfocus: tell, onblur: () => tip.hide() },
      active ? s("circle", { class: "pe-ring", cx: u, cy: v, r: 9 }) : null, above, shape, s("circle", { cx: u, cy: v, r: 11, fill: "transparent" }));
      const point = { system, index, el: place_, u, v, tell };
      if (active) {
        place_.addEventListener("pointerdown", (event) => event.stopPropagation());      // the focus is ours
        place_.addEventListener("click", (event) => {
          const meant = nearest(event);
          meant.el.focus({ preventScroll: true });
          choose(meant);
        });
        place_.addEventListener("keydown", (event) => keys(event, point));
        points.push(point);
      }
      return place_;
    });
  }

  function draw() {
    const had = points.some((point) => point.el === document.activeElement), bottom = HEIGHT - MARGIN.bottom, right = width - MARGIN.right;
    for (const [name, value] of [["viewBox", `0 0 ${width} ${HEIGHT}`], ["width", width], ["height", HEIGHT]]) plot.setAttribute(name, value);
    const words = (x, y, content, more) => s("text", { x, y, "font-size": 12, fill: "var(--pe-muted)", ...more }, content);
    const ticks = width < 420 ? across.filter((_, i) => i % 2 === 0) : across;
    const grid = [0, 0.2, 0.4, 0.6, 0.8, 1].flatMap((value) => [s("path", { d: `M${MARGIN.left} ${at(0, value)[1]}H${right}`, stroke: OUTLINE, "stroke-opacity": value ? 0.3 : 1 }),
      words(MARGIN.left - 8, at(0, value)[1] + 4, String(value), { "text-anchor": "end" })]);
    const names = [...ticks.map((value) => words(at(value, 0)[0], bottom + 18, String(value), { "text-anchor": "middle" })),
      words((MARGIN.left + right) / 2, HEIGHT - 8, "request rate [requests/s]", { "text-anchor": "middle", "font-size": 13, fill: "var(--pe-ink)" }),
      words(0, 0, "latency [s/token]", { transform: `translate(16 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", "font-size": 13, fill: "var(--pe-ink)" })];
    points = [];
    const lines = systems.flatMap(({ ours, hue, dash }) => clipped(ours, TOP).map((part) => s("path", { d: joined(part.map(([x, y]) => at(x, y))), stroke: hue, "stroke-width": 2.2, "stroke-dasharray": dash || "none", fill: "none" })));
    const marks = [...systems.flatMap((system) => place(system, system.paper, false)), ...systems.flatMap((system) => place(system, system.ours, true))];
    line = s("g", { class: "pe-threshold", onpointerdown: grab },
      s("rect", { x: MARGIN.left, y: width < 520 ? -20 : -12, width: width - MARGIN.left, height: width < 520 ? 40 : 24, fill: "transparent" }),
      s("path", { d: `M${MARGIN.left} 0H${right}`, stroke: "var(--pe-ink)", "stroke-width": 1.8, "stroke-dasharray": "6 3" }),
      s("rect", { x: right + 2, y: -12, width: 60, height: 24, rx: 12, fill: "var(--pe-ground)", stroke: "var(--pe-ink)", "stroke-width": 1.4 }),
      s("text", { x: right + 32, y: 4.5, "text-anchor": "middle", "font-size": 12.5, "font-weight": 600, fill: "var(--pe-ink)" }));
    plot.replaceChildren(...grid, ...names, ...lines, line, ...marks);
    moveLine();
    if (!points.length) return;
    if (!chosen) {
      if (level) choose(begin());
      return;
    }
    const again = points.find((point) => same(point, chosen));
    show(again);
    if (had) again.el.focus();
  }

  function grab(event) {
    if (event.button) return;
    event.preventDefault();
    event.stopPropagation();
    const offset = event.clientY - plot.getBoundingClientRect().top - at(0, level / 100)[1];
    const move = (next) => options.seek(levelAt(next.clientY - plot.getBoundingClientRect().top - offset));
    const end = () => {
      stop.forEach((name) => window.removeEventListener(...name));
      stop = [];
      line?.classList.remove("pe-held");
    };
    stop = [["pointermove", move], ["pointerup", end], ["pointercancel", end]];
    stop.forEach((name) => window.addEventListener(...name));
    line.classList.add("pe-held");
    tip.hide();
    slider.focus({ preventScroll: true });                  // the arrow keys go on from where the pointer left it
  }

  function moveLine() {
    if (!line) return;
    line.setAttribute("transform", `translate(0 ${at(0, level / 100)[1]})`);
    setText(line.lastChild, `${fixed(level / 100, 2)} ↕`);
  }

  const unwatch = watchWidth(stage, (now) => { width = now; draw(); });
  return {
    update(now) {
      if (now === level) return;
      level = now;
      moveLine();
      if (points.length && !chosen) choose(begin());
      const threshold = level / 100, rows = compare(systems, threshold);
      slider.value = threshold;
      setText(readout, `${fixed(threshold, 2)} s/token`);
      setText(said, told(rows, threshold));
      body.replaceChildren(...rows.map((row) => {
        const [name, ours, paper, error, ratio, papers] = cells(row);
        return h("tr", {}, h("th", { scope: "row" }, name), ...[ours, ...(hasPaper ? [paper, error] : []), ratio, ...(hasPaper ? [papers] : [])].map((words) => h("td", {}, words)));
      }));
    },
    destroy() {
      unwatch();
      stop.forEach((name) => window.removeEventListener(...name));
      panel?.destroy();
      el.replaceChildren();
    },
  };
}

const same = (a, b) => a.system === b.system && a.index === b.index;

function keyed(systems, hasPaper) {
  const items = systems.map(({ name, hue, dash, mark: kind }) => h("span", { class: "pe-key-item" },
    s("svg", { width: 40, height: 16, "aria-hidden": "true" }, s("path", { d: "M0 8h40", stroke: hue, "stroke-width": 2.2, "stroke-dasharray": dash || "none" }), s("path", { d: mark(kind, 20, 8), fill: hue })), name));
  return h("div", { class: "pe-key-list" }, ...items, hasPaper ? h("span", { class: "pe-key-item" }, "open marks: the paper’s points") : null,
    systems.some(({ ours, paper }) => [...ours, ...paper].some(([, y]) => y > TOP)) ? h("span", { class: "pe-key-item" }, "▴ above the axis") : null);
}
