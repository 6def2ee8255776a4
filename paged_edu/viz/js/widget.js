// The player as an anywidget: `initialize` once a model, `render` once a place that shows it. The kernel's side is paged_edu/viz/live.py.
import { Player } from "./player.js";
import { recording } from "./frames.js";
import { mount } from "./controls.js";
import { engineControls } from "./engine.js";

const players = new WeakMap();

const traces = (data) => data.tracks.map((track) => ({ label: track.label, trace: recording(track) }));

function connect(model, told = null) {
  const data = model.get("data");
  const counts = data.tracks.map((track) => track.count);
  let later = 0;
  const remote = {
    send: (message) => { try { model.send(message); } catch { /* no kernel: recorded steps still play */ } },
    moved(step) {                                           // not at every frame: the kernel need not follow a slider that is being dragged
      clearTimeout(later);
      later = setTimeout(() => { model.set("shown", step); model.save_changes(); }, 120);
    },
    speed(value) { model.set("speed", value); model.save_changes(); },
  };
  const player = new Player({
    tracks: traces(data), panes: data.panes, words: data.words, controls: data.controls, name: data.name, bare: data.bare, shown: model.get("shown"), speed: model.get("speed"),
    live: model.get("live"),
  }, remote);
  player.notice = model.get("notice");

  const on = {
    "msg:custom": (message) => {
      if (message.kind === "reset") {
        message.data.tracks.forEach((track, i) => { counts[i] = track.count; });
        player.replace(traces(message.data), message.data.words);
        player.answered();
        player.goto(model.get("shown"));
      } else if (message.kind === "events") {
        player.answered();
        const known = counts[message.track] - message.from;
        if (known < 0) remote.send({ kind: "resend" });     // some came before this page listened
        else if (known < message.events.length) {
          counts[message.track] = message.from + message.events.length;
          player.push(message.track, message.events.slice(known), message.words);
        }
      } else if (message.kind === "answer") player.answered();
    },
    "change:shown": () => { clearTimeout(later); player.goto(model.get("shown")); },
    "change:speed": () => { player.speed = model.get("speed"); player.changed(); },
    "change:notice": () => { player.answered(); player.say(model.get("notice")); },
    "change:live": () => player.setLive(model.get("live")),
    "change:playing": () => { player.answered(); player.setFollowing(model.get("playing")); },
    "change:count": () => { if (model.get("count") > counts.reduce((a, b) => a + b, 0)) remote.send({ kind: "resend" }); },
  };
  for (const [name, listener] of Object.entries(on)) model.on(name, listener);
  if (model.get("count") > counts.reduce((a, b) => a + b, 0)) remote.send({ kind: "resend" });
  if (model.get("playing")) player.setFollowing(true);
  players.set(model, player);
  told?.(player);
  return () => {
    clearTimeout(later);
    for (const [name, listener] of Object.entries(on)) model.off(name, listener);
    player.destroy();
    players.delete(model);
  };
}

export function widget(modules) {
  return {
    initialize: ({ model, told }) => connect(model, told),           // `told` is for tests: the player has no page of its own
    render({ model, el }) {
      const end = players.has(model) ? null : connect(model);
      const player = players.get(model);
      const unmount = mount(el, player, modules, player.controls ? engineControls : null);
      return () => { unmount(); end?.(); };
    },
  };
}
