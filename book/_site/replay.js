// The first page's story: two memories and one run, played by the package's own player, with a sentence for each scene and buttons that lead to it.
import { h, reducedMotion, setText } from "./dom.js";
import { show } from "./page.js";

export function start(modules) {
  for (const el of document.querySelectorAll(".pe-replay")) begin(el, modules);
}

function begin(el, modules) {
  const data = JSON.parse(el.querySelector('script[type="application/json"]').textContent), { scenes } = data;
  const said = h("p", { class: "pr-said", "aria-live": "polite" }), place = h("div");
  const buttons = scenes.map((scene, i) => h("button", {
    type: "button", class: "pe-button pr-scene", title: `Scene ${i + 1}: step ${scene.step}`, "aria-label": `Scene ${i + 1}: step ${scene.step}`, onclick: () => go(scene.step),
  }, String(i + 1)));
  el.replaceChildren(h("div", { class: "pr-story" }, h("div", { class: "pr-scenes", role: "group", "aria-label": "scenes" }, ...buttons), said), place);
  const { player } = show(place, data, modules);
  el.player = player;
  let left = false;                                         // the reader has taken over: nothing stops by itself any more

  function go(step) {
    left = true;
    player.pause();
    player.seek(step);
  }

  function tell() {
    const at = Math.max(0, scenes.findLastIndex((scene) => scene.step <= player.shown));
    setText(said, scenes[at].text);
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === at)));
    if (!left && player.playing && player.shown >= data.until) {
      left = true;
      player.pause();
    }
  }

  player.subscribe(tell);
  for (const kind of ["pointerdown", "keydown"]) el.addEventListener(kind, () => { left = true; }, { capture: true });
  el.querySelector(".pe-status").setAttribute("aria-live", "off");        // the scene is read out; the step's own sentence is there to be read
  if (reducedMotion()) player.seek(data.still);
  else {
    player.seek(scenes[0].step);
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      setTimeout(() => { if (!left) player.play(); }, 1200);
    }, { threshold: 0.3 });
    seen.observe(place);
  }
  tell();
}
