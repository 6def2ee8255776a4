// The colours of every picture, as in paged_edu/viz/palette.py (a test compares the two), and what the page's own theme says.

export const HUES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
export const HATCHES = ["solid", "rising", "falling", "crossed"];
export const OUTLINE = "#7B7B7B";
export const PARTS = { tokens: "#0072B2", reserved: "#56B4E9", internal: "#E69F00", external: "#B0B0B0" };

// Name of the request that arrived as number `arrival` (from 0): A ... Z, then A2 ... Z2, A3 ...
export function letter(arrival) {
  const lap = Math.floor(arrival / 26);
  return String.fromCharCode(65 + (arrival % 26)) + (lap ? lap + 1 : "");
}

// Letter, hue, colour of the letter on the hue, and hatch of a request.
export function look(arrival) {
  const lap = Math.floor(arrival / HUES.length), index = arrival % HUES.length;
  return { letter: letter(arrival), hue: HUES[index], onHue: index === 0 ? "#FFFFFF" : "#111111", hatch: HATCHES[lap % HATCHES.length] };
}

// Ink, ground and muted ink of the page around `el`, for a canvas; elements and SVG take var(--pe-ink) and so on from style.css.
export function theme(el) {
  const style = getComputedStyle(el), read = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return { ink: read("--pe-ink", "#1A1D23"), ground: read("--pe-ground", "#FFFFFF"), muted: read("--pe-muted", "#5B6270"), outline: OUTLINE };
}

// Call `changed` when the page turns dark or light; the function that comes back ends that.
export function watchTheme(changed) {
  const media = window.matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", changed);
  const observer = new MutationObserver(changed);
  for (const target of [document.documentElement, document.body]) {
    observer.observe(target, { attributes: true, attributeFilter: ["class", "style", "data-theme", "data-mode", "data-jp-theme-name", "data-vscode-theme-kind"] });
  }
  return () => {
    media.removeEventListener("change", changed);
    observer.disconnect();
  };
}
