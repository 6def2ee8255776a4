// Elements by hand: HTML, SVG, a tooltip, a canvas as sharp as the screen.

// h("button", {class: "pe-x", onclick: f, "aria-label": "..."}, child, "text")
export function h(tag, attributes = {}, ...children) { return fill(document.createElement(tag), attributes, children); }

// The same for SVG.
export function s(tag, attributes = {}, ...children) { return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children); }

function fill(el, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (value === true) el.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) el.setAttribute(name, value);
  }
  el.append(...children.filter((child) => child !== null && child !== undefined));
  return el;
}

// Set text only where it differs: a live region is read out at every change.
export function setText(el, text) { if (el.textContent !== text) el.textContent = text; }

// Make `canvas` `width` x `height` CSS pixels; returns its context, in CSS pixels. Clears it.
export function sharp(canvas, width, height) {
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// A tooltip inside `place` (position: relative). show(lines, x, y) puts it beside a point and inside the place; hide() takes it away.
export function tooltip(place) {
  const box = h("div", { class: "pe-tip", role: "tooltip", hidden: true });
  place.append(box);
  return {
    show(lines, x, y) {
      const text = lines.join("\n");
      setText(box, text);
      box.hidden = false;
      const room = place.clientWidth;
      const left = x + 14 + box.offsetWidth > room ? Math.max(0, Math.min(x - 14 - box.offsetWidth, room - box.offsetWidth)) : x + 14;
      box.style.left = `${left}px`;
      box.style.top = `${y + 14}px`;
    },
    hide() { box.hidden = true; },
  };
}

// Call `changed(width)` when the width of `el` changes, and once at the start if it has one; the function that comes back ends that.
export function watchWidth(el, changed) {
  let known = -1;
  const look = () => {
    const width = Math.floor(el.clientWidth);
    if (width && width !== known) {
      known = width;
      changed(width);
    }
  };
  const observer = new ResizeObserver(look);
  observer.observe(el);
  look();
  return () => observer.disconnect();
}

export const reducedMotion = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
