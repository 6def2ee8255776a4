// One query visits its blocks (AttentionWalk): the pictures that paged_edu/viz/walk_svg.py drew, and a switch for who forgets to rescale.
import { h, setText } from "./dom.js";

export const basis = 820;

export function create(el, options) {
  let trace = null, drawn = null;
  const toggle = h("button", {
    type: "button", class: "pe-button", title: "What comes out where l and acc are not scaled down when m grows",
    onclick: () => { trace.variant = 1 - trace.variant; options.redraw(); },
  }, "forget to rescale");
  const picture = h("div", { class: "pe-wide", tabindex: 0, role: "group", "aria-label": "the walk" });
  const said = h("div", { class: "pe-note pe-heard", "aria-live": "polite" });
  el.append(h("div", { class: "pe-row" }, toggle), picture, said);

  return {
    update(frame, context) {
      trace = context.trace;
      toggle.setAttribute("aria-pressed", String(trace.variant === 1));
      if (frame.picture !== drawn) picture.innerHTML = drawn = frame.picture;
      setText(said, frame.compared);
    },
    destroy() { el.replaceChildren(); },
  };
}
