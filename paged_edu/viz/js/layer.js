// A layer line by line (LayerStepper): the pictures that paged_edu/viz/layer_svg.py drew, and a button for each model.
import { h, setText } from "./dom.js";

export const basis = 856;

export function create(el, options) {
  let trace = null, drawn = null;
  const buttons = options.names.map((name, i) => h("button", {
    type: "button", class: "pe-button", title: `The layer of ${name}`, onclick: () => { trace.variant = i; options.redraw(); },
  }, name));
  const picture = h("div", { class: "pe-wide", tabindex: 0, role: "group", "aria-label": "the layer" });
  const said = h("div", { class: "pe-note pe-heard", "aria-live": "polite" });
  el.append(h("div", { class: "pe-row", hidden: buttons.length < 2 }, ...buttons), picture, said);

  return {
    update(frame, context) {
      trace = context.trace;
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(trace.variant === i)));
      if (frame.picture !== drawn) picture.innerHTML = drawn = frame.picture;
      setText(said, frame.why);
    },
    destroy() { el.replaceChildren(); },
  };
}
