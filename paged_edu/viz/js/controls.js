// mount: a player's buttons, slider, keys, sentence and panes in an element of a page.
import { h, reducedMotion, setText, watchWidth } from "./dom.js";
import { watchTheme } from "./palette.js";

const ICONS = {
  home: "M6 5h2v14H6zM19 5v14L9 12z", back: "M17 5v14L7 12z", step: "M7 5v14l10-7z", end: "M16 5h2v14h-2zM5 5v14l10-7z",
  play: "M7 4v16l13-8z", pause: "M6 5h4v14H6zM14 5h4v14h-4z",
};

function icon(name) {
  const box = h("span", { class: "pe-icon", "aria-hidden": "true" });
  box.innerHTML = `<svg viewBox="0 0 24 24" width="16" height="16"><path d="${ICONS[name]}" fill="currentColor"/></svg>`;
  return box;
}

function button(name, label, title, action) {
  return h("button", { type: "button", class: "pe-button", title, onclick: action }, icon(name), h("span", { class: "pe-word" }, label));
}

// modules: name -> module with create(el, options); extras: (player) -> {el, keys, update()} for an engine's own controls.
// Returns the function that takes everything away again.
export function mount(el, player, modules, extras = null) {
  let before = null, pending = 0;
  const buttons = {
    home: button("home", "Home", "The oldest recorded step (Home)", () => player.home()),
    back: button("back", "Back", "One step backwards, replayed (left arrow)", () => player.back()),
    step: button("step", "Step", "One step forwards; at the newest step the engine runs one (right arrow)", () => player.step()),
    play: button("play", "Play", "Step by itself, or pause (space)", () => player.toggle()),
    end: button("end", "End", "The newest recorded step (End)", () => player.end()),
  };
  const slider = h("input", { type: "range", class: "pe-slider", "aria-label": "step", step: 1, oninput: () => { player.pause(); player.seek(Number(slider.value)); } });
  const readout = h("output", { class: "pe-readout" });
  const speed = h("input", { type: "range", class: "pe-speed", "aria-label": "speed, steps a second", min: 0.5, max: 10, step: 0.5, oninput: () => player.setSpeed(Number(speed.value)) });
  const speedReadout = h("output", { class: "pe-readout" });
  const status = h("div", { class: "pe-status", role: "status", "aria-live": "polite", hidden: player.bare });
  const more = extras ? extras(player) : null;
  const panes = h("div", { class: "pe-panes" });
  const root = h("div", { class: "pe paged-edu", tabindex: -1, role: "group", "aria-label": player.name || "player", "data-lm-suppress-shortcuts": "true", onkeydown: (event) => { if (!player.bare) keys(event); } },
    h("div", { class: "pe-controls", hidden: player.bare },
      h("div", { class: "pe-buttons" }, ...Object.values(buttons)),
      h("label", { class: "pe-range pe-steps" }, h("span", {}, "step"), slider, readout),
      h("label", { class: "pe-range" }, h("span", {}, "steps/s"), speed, speedReadout)),
    more?.el, status, panes);
  el.append(root);

  const views = player.panes.map((pane, i) => {
    const module = modules[pane.module], brief = player.panes.findIndex((other) => other.module === pane.module) < i;    // explained once is enough
    const place = h("div", { class: "pe-place" });
    const box = h("section", { class: `pe-pane pe-pane-${pane.module}`, "aria-label": pane.title || pane.module },
      pane.title ? h("h4", { class: "pe-title" }, pane.title) : null, place);
    box.style.flexBasis = `${pane.options.basis ?? (player.tracks.length > 1 ? 340 : module.basis ?? 520)}px`;     // side by side, to compare them
    box.style.flexGrow = module.grow ?? 1;
    panes.append(box);
    return { pane, view: module.create(place, { ...pane.options, brief, select: (request) => player.select(pane.track, request), seek: (step) => player.seek(step), redraw: schedule }) };
  });

  function schedule() { pending ||= requestAnimationFrame(draw); }

  function draw() {
    pending = 0;
    buttons.play.title = player.playing ? "Pause (space)" : "Step by itself, or pause (space)";
    setText(buttons.play.lastChild, player.playing ? "Pause" : "Play");
    if (buttons.play.dataset.icon !== String(player.playing)) {
      buttons.play.dataset.icon = String(player.playing);
      buttons.play.firstChild.replaceWith(icon(player.playing ? "pause" : "play"));
    }
    [slider.min, slider.max, slider.value] = [player.first, player.last, player.shown];
    setText(readout, `${player.shown} / ${player.last}`);
    speed.value = player.speed;
    setText(speedReadout, String(player.speed));
    for (const [name, off] of [["home", player.shown <= player.first], ["back", player.shown <= player.first], ["end", player.shown >= player.last]]) {
      buttons[name].setAttribute("aria-disabled", String(off));                 // stays focusable: a disabled button would lose the keyboard
    }
    setText(status, player.notice || player.sentence);
    const forwards = before !== null && player.shown === before + 1;
    const calm = reducedMotion() || (player.playing && player.speed >= 5);
    for (const { pane, view } of views) {
      const track = player.tracks[pane.track], step = player.stepOf(track);
      const moved = before === null || before !== player.shown;
      view.update(track.trace.at(step), {
        trace: track.trace, step, words: player.words, playing: player.playing, speed: player.speed, live: player.live,
        moved, forwards, animate: moved && forwards && !calm && step === player.shown,
        selected: player.selected?.track === pane.track ? player.selected.request : null,
      });
    }
    more?.update();
    before = player.shown;
  }

  function keys(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const target = event.target, typing = target.matches("input:not([type=range]):not([type=checkbox]), textarea, select");
    if (typing) return event.stopPropagation();
    const range = target.matches("input[type=range]"), pressed = target.matches("button, summary") && (event.key === " " || event.key === "Enter");
    if (pressed || (range && /^(Arrow|Home|End|Page)/.test(event.key))) return event.stopPropagation();
    const action = {
      " ": () => player.toggle(), ArrowLeft: () => player.back(), ArrowRight: () => { player.pause(); player.step(); },
      Home: () => player.home(), End: () => player.end(), ...more?.keys,
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  // A click on a picture gives the keys to this player.
  panes.addEventListener("pointerdown", (event) => { if (!event.target.closest("button, input, select, canvas, [tabindex='0']")) root.focus({ preventScroll: true }); });
  const there = () => root.isConnected;
  player.places.add(there);
  const ends = [
    player.subscribe(schedule), watchTheme(schedule), watchWidth(root, (width) => { root.classList.toggle("pe-narrow", width < 520); schedule(); }),
    () => player.places.delete(there), () => cancelAnimationFrame(pending), ...views.map(({ view }) => () => view.destroy()), () => more?.destroy?.(), () => root.remove(),
  ];
  draw();
  return () => ends.forEach((end) => end());
}
