// The controls of a running engine: add a request, abort one, start over. The kernel checks what is typed; what is wrong shows in the status line.
import { h } from "./dom.js";
import { letter } from "./palette.js";

export function engineControls(player) {
  const { text, reset } = player.controls;
  const as = h("select", { "aria-label": "the prompt is" }, ...(text ? [h("option", { value: "text" }, "text")] : []), h("option", { value: "tokens" }, "tokens"));
  const prompt = h("input", { type: "text", class: "pe-prompt", value: text ? player.controls.prompt : "12", "aria-label": "prompt", spellcheck: "false", autocomplete: "off" });
  as.addEventListener("change", () => { prompt.value = as.value === "text" ? player.controls.prompt : "12"; });
  const most = h("input", { type: "number", min: 1, value: player.controls.max_tokens, "aria-label": "max_tokens" });
  const n = h("input", { type: "number", min: 1, value: 1, "aria-label": "n, answers at once" });
  const who = h("select", { class: "pe-who", "aria-label": "request to abort" });
  const add = () => player.ask({ kind: "add", as: as.value, prompt: prompt.value, max_tokens: most.value, n: n.value });
  const abort = () => who.value ? player.ask({ kind: "abort", request_id: who.value }) : player.say("no request is unfinished: there is nothing to abort");
  const form = h("form", { class: "pe-engine", novalidate: true, onsubmit: (event) => { event.preventDefault(); add(); } },
    h("span", { class: "pe-group" },
      h("label", {}, "prompt", prompt), as, h("label", {}, "max_tokens", most), h("label", {}, "n", n),
      h("button", { type: "submit", class: "pe-button", title: "Add a request (A)" }, "Add")),
    h("span", { class: "pe-group" }, who, h("button", { type: "button", class: "pe-button", title: "Abort the chosen request (X)", onclick: abort }, "Abort"),
      reset ? h("button", { type: "button", class: "pe-button", title: "Start over: every request ends, the recording begins again", onclick: () => { player.pause(); player.ask({ kind: "restart" }); } }, "Reset") : null));
  let known = "";

  function update() {
    const ids = new Map();
    for (const { trace } of player.tracks) for (const [id, r] of trace.newest.requests) ids.set(id, r.arrival);
    const list = [...ids].sort((a, b) => a[1] - b[1]), key = JSON.stringify(list);
    if (key === known) return;
    known = key;
    const chosen = who.value;
    who.replaceChildren(...(list.length ? list.map(([id, arrival]) => h("option", { value: id }, `${letter(arrival)} (${id})`)) : [h("option", { value: "" }, "nobody")]));
    if (ids.has(chosen)) who.value = chosen;
  }

  return { el: form, update, keys: { a: add, x: abort } };
}
