// What every page of the book does: draws its plots with the one copy of plotly when the reader comes near, in the page's light or dark colours.
(() => {
  const here = new URL(".", document.currentScript.src).href;
  let library = null;
  const plotly = () => library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${here}plotly.min.js`;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("plotly.min.js could not be loaded"));
    document.head.append(script);
  });

  const dark = () => document.documentElement.dataset.theme === "dark";
  // The neutral colours of the figures (paged_edu/viz/palette.py, plotly's white template) and what they are on a dark page.
  const NIGHT = {
    "#1a1d23": "#e8eaed", "#2a3f5f": "#e8eaed", "#444": "#e8eaed", "#5b6270": "#a3a9b4", "#ffffff": "#16181d", white: "#16181d", "#fff": "#16181d",
    "#ebf0f8": "#343841", "#dfe8f3": "#343841", "#e5ecf6": "#343841", "#e4e6ea": "#343841", "#c8d4e3": "#4a505c",
  };

  function night(value, keep = "", key = "") {
    if (keep && key.endsWith("textfont")) return value;
    if (typeof value === "string") return NIGHT[value.toLowerCase()] ?? value;
    if (Array.isArray(value)) return value.length && typeof value[0] === "number" ? value : value.map((item) => night(item, keep));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, night(item, keep, name)]));
    return value;
  }

  // Text on a coloured mark stays as it is: its ground does not change. A mark in the page's own colour changes with the page.
  // (A pattern's ground is the page's, unless it says otherwise.)
  const see = (pattern) => pattern?.shape && !pattern.bgcolor && pattern.fillmode !== "overlay";
  const onHue = ({ marker }) => typeof marker?.color === "string" && !(marker.color.toLowerCase() in NIGHT) && !marker.color.startsWith("rgba") && !see(marker.pattern);
  const traces = (list, marks) => list?.map((trace, i) => night(trace, marks[i] ? "text" : ""));

  function coloured(spec) {
    if (!dark()) return structuredClone(spec);
    const marks = spec.data.map(onHue), layout = night(spec.layout ?? {});
    const frames = spec.frames?.map((frame) => ({
      ...frame, layout: night(frame.layout), data: frame.data?.map((trace, i) => night(trace, marks[frame.traces?.[i] ?? i] ? "text" : "")),
    }));
    layout.paper_bgcolor = layout.plot_bgcolor = "#16181d";
    layout.font = { ...layout.font, color: "#e8eaed" };
    for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))])) {
      layout[name] = { gridcolor: "#343841", zerolinecolor: "#4a505c", linecolor: "#a3a9b4", ...layout[name] };
    }
    return { data: traces(spec.data, marks), layout, frames };
  }

  // A title in lines of at most `most` letters: plotly does not break lines, and a phone is narrow.
  function folded(text, most) {
    const lines = [];
    for (const word of (text ?? "").split(" ")) {
      if (lines.length && `${lines.at(-1)} ${word}`.length <= most) lines.push(`${lines.pop()} ${word}`);
      else lines.push(word);
    }
    return lines;
  }

  async function draw(figure) {
    const place = figure.querySelector(".pe-plotly");
    figure.spec ??= JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const Plotly = await plotly();
    const { data, layout, frames } = coloured(figure.spec);
    const { width, ...rest } = layout, lines = folded(rest.title?.text, Math.floor(place.parentElement.clientWidth / 9));
    if (lines.length > 1) {
      rest.title = { ...rest.title, text: lines.join("<br>") };
      rest.margin = { ...rest.margin, t: (rest.margin?.t ?? 60) + 20 * (lines.length - 1) };
    }
    figure.classList.add("pe-drawn");
    await Plotly.newPlot(place, data, { ...rest, autosize: true }, { displayModeBar: false, responsive: true });
    if (frames) await Plotly.addFrames(place, frames);
    figure.classList.add("pe-ready");
  }

  function start() {
    const figures = document.querySelectorAll(".pe-figure");
    if (figures.length) {
      const near = new IntersectionObserver((entries) => {
        for (const { isIntersecting, target } of entries) {
          if (!isIntersecting) continue;
          near.unobserve(target);
          draw(target).catch((error) => console.error(error));
        }
      }, { rootMargin: "600px" });
      figures.forEach((figure) => near.observe(figure));
      let shown = dark();
      new MutationObserver(() => {
        if (shown === dark()) return;
        shown = dark();
        document.querySelectorAll(".pe-figure.pe-drawn").forEach((figure) => draw(figure).catch((error) => console.error(error)));
      }).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    }
    document.querySelectorAll('a[href^="http"]').forEach((link) => { link.rel = "noopener"; });
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
