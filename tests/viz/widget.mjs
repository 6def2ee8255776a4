// Runs the page's end of a widget without a page: the model's traits and messages come from standard input as the kernel sent them, one after the
// other; after each of them, what the page would show. See test_live.py.
import { readFileSync } from "node:fs";

const input = JSON.parse(readFileSync(0, "utf8"));
globalThis.requestAnimationFrame = () => 0;
const widget = (await import("data:text/javascript," + encodeURIComponent(input.bundle))).default;

class Model {
  constructor(state) { Object.assign(this, { state, listeners: {}, sent: [] }); }
  get(name) { return this.state[name]; }
  set(name, value) { this.state[name] = value; }
  save_changes() { this.sent.push({ saved: true }); }
  send(message) { this.sent.push(message); }
  on(name, listener) { (this.listeners[name] ??= new Set()).add(listener); }
  off(name, listener) { this.listeners[name]?.delete(listener); }
  fire(name, ...args) { for (const listener of this.listeners[name] ?? []) listener(...args); }
}

const out = [];
for (const { state, messages, lost = [] } of input.runs) {
  const model = new Model(state);
  let player = null;
  const end = widget.initialize({ model, told: (made) => { player = made; } });
  const seen = [];
  const look = () => seen.push({
    shown: player.shown, first: player.first, last: player.last, said: player.notice || player.sentence, live: player.live, playing: player.playing,
    blocks: player.tracks.map((track) => (track.trace.at(player.stepOf(track)).blocks?.() ?? []).map((b) => b.owners.length)), words: Object.keys(player.words).length,
  });
  look();
  messages.forEach((message, i) => {
    if (lost.includes(i)) return;
    if (message.kind === "traits") {
      Object.assign(model.state, message.traits);
      for (const name of Object.keys(message.traits)) model.fire(`change:${name}`);
    } else model.fire("msg:custom", message);
    look();
  });
  const sent = model.sent.filter((message) => message.kind);
  end();
  const left = Object.values(model.listeners).reduce((sum, set) => sum + set.size, 0);
  out.push({ seen, sent, left });
}
console.log(JSON.stringify(out));
process.exit(0);
