// The player in a page without Jupyter: every <div class="pe-mount"> with its data in a <script type="application/json"> inside becomes one.
import { Player } from "./player.js";
import { recording } from "./frames.js";
import { mount } from "./controls.js";

// Show saved data (what View.page_data makes, or {tracks: [{label, header, events}], panes}) in an element. modules: name -> module.
// Returns {player, destroy}.
export function show(el, data, modules) {
  const tracks = data.tracks.map((track) => ({ label: track.label, trace: recording(track) }));
  const player = new Player({ ...data, tracks, controls: null, live: "none" });
  const unmount = mount(el, player, modules);
  return { player, destroy() { unmount(); player.destroy(); } };
}

export function start(modules) {
  for (const el of document.querySelectorAll(".pe-mount")) {
    const data = el.querySelector('script[type="application/json"]');
    el.player = show(el, JSON.parse(data.textContent), modules).player;
  }
}
