// Player: which step is shown and what comes next, without any page. `mount` in controls.js draws it; several places of a page may show one player.
//
// Recorded steps play here, by a timer. Beyond the newest step only the engine can go: `remote` asks the kernel for that and is told of moves.
import { stepSentence } from "./sentence.js";

export const NOTHING_LEFT = "nothing left to run: no request is unfinished";
export const NEWEST = "this is the newest step";
const told = (trace, step) => trace.sentence?.(step) ?? stepSentence(trace, step);
const KERNEL_SILENT = "waiting for the kernel: it runs a cell, or it is gone. Recorded steps still play.";

export class Player {
  // tracks: [{label, trace}], steps in common; panes: [{track, module, title, options}]; words: token id -> text.
  // bare: the view has its own controls and sentence. live: "none" (a recording), "idle" (an engine with nothing to do) or "unfinished".
  constructor({ tracks, panes = [], words = {}, shown = null, speed = 2, live = "none", controls = null, name = "", bare = false }, remote = null) {
    Object.assign(this, { tracks, panes, words, speed, live, controls, name, bare, remote });
    this.playing = false;
    this.following = false;       // the kernel plays, we look
    this.notice = "";             // in place of the sentence, until the next move
    this.selected = null;         // {track, request} that the views point at
    this.places = new Set();      // functions that say whether a place where this player is drawn is still in the page
    this.listeners = new Set();
    this.asked = null;
    this.wanted = null;           // a step of which the events have not come yet
    this.shown = this.#inside(shown ?? this.last);
  }

  get first() { return Math.min(...this.tracks.map((track) => track.trace.firstStep)); }

  get last() { return Math.max(...this.tracks.map((track) => track.trace.lastStep)); }

  #inside(step) { return Math.min(Math.max(Math.round(step) || 0, this.first), this.last); }

  // The step of one track while `shown` is the step of all: a track that is done stays at its end.
  stepOf(track) { return Math.min(Math.max(this.shown, track.trace.firstStep), track.trace.lastStep); }

  get sentence() {
    const said = this.tracks.map((track) => {
      const words = this.shown > track.trace.lastStep ? `done after step ${track.trace.lastStep}` : told(track.trace, this.stepOf(track));
      return track.label ? `${track.label}: ${words}` : words;
    });
    return said.join("\n");
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  changed() { for (const listener of [...this.listeners]) listener(); }

  say(notice) {
    this.notice = notice;
    this.changed();
  }

  select(track, request) {
    const same = this.selected && this.selected.track === track && this.selected.request === request;
    this.selected = request === null || same ? null : { track, request };
    this.changed();
  }

  // -- moving
  // Show a recorded step; `told` is false when the kernel said so.
  seek(step, told = true) {
    this.wanted = null;
    this.shown = this.#inside(step);
    this.notice = "";
    if (told && this.remote) this.remote.moved(this.shown);
    this.changed();
  }

  // The kernel moved: perhaps to a step whose events are still on the way.
  goto(step) {
    this.wanted = step > this.last ? step : null;
    const to = this.#inside(step);
    if (to === this.shown) return;
    this.shown = to;
    this.notice = "";
    this.changed();
  }

  // Other tracks: the kernel started over, or sent everything again.
  replace(tracks, words = {}) {
    this.tracks = tracks;
    Object.assign(this.words, words);
    this.shown = this.#inside(this.shown);
    this.changed();
  }

  step() {
    if (this.shown < this.last) this.seek(this.shown + 1);
    else if (this.live === "unfinished") this.ask({ kind: "step" });
    else {
      this.pause();
      this.say(this.live === "idle" ? NOTHING_LEFT : NEWEST);
    }
  }

  back() { this.#move(this.shown - 1); }

  home() { this.#move(this.first); }

  end() { this.#move(this.last); }

  #move(step) {
    this.pause();
    this.seek(step);
  }

  // -- playing
  play() {
    if (this.playing) return;
    if (this.shown >= this.last && this.live === "none") this.seek(this.first);     // a recording starts over
    this.playing = true;
    this.#tick();
    this.changed();
  }

  pause() {
    clearTimeout(this.timer);
    if (this.following) this.remote?.send({ kind: "pause" });
    if (this.playing || this.following) {
      this.playing = this.following = false;
      this.changed();
    }
  }

  toggle() { this.playing ? this.pause() : this.play(); }

  setSpeed(speed) {
    this.speed = Math.min(10, Math.max(0.5, speed));
    this.remote?.speed?.(this.speed);
    this.changed();
  }

  #tick() {
    clearTimeout(this.timer);
    if (!this.playing || this.following) return;
    if (this.places.size && ![...this.places].some((there) => there())) return this.pause();     // nobody looks: the output was cleared or left
    if (this.shown >= this.last) {
      if (this.live !== "unfinished") return this.step();                                         // says that nothing is left, and pauses
      if (this.asked) return void (this.timer = setTimeout(() => this.#tick(), 100));             // a step is on its way
      this.following = true;
      return this.ask({ kind: "play" });
    }
    this.seek(this.shown + 1);
    this.timer = setTimeout(() => this.#tick(), 1000 / this.speed);
  }

  // -- the kernel
  // Send a message that is answered by events or by a move. While one waits, another is not sent: clicks would pile up behind a running cell.
  ask(message) {
    if (!this.remote || this.asked) return;
    this.remote.send(message);
    this.asked = setTimeout(() => this.say(KERNEL_SILENT), 1500);
  }

  answered() {
    clearTimeout(this.asked);
    this.asked = null;
    if (this.notice === KERNEL_SILENT) this.say("");
  }

  // New events of a track.
  push(index, events, words = {}) {
    Object.assign(this.words, words);
    this.tracks[index].trace.push(events);
    if (this.wanted !== null) this.goto(this.wanted);
    if (this.shown < this.first) this.shown = this.first;
    this.changed();
  }

  setLive(live) {
    this.live = live;
    this.changed();
  }

  // The kernel plays, or has stopped.
  setFollowing(playing) {
    if (playing === this.following && playing === this.playing) return;
    clearTimeout(this.timer);
    this.playing = this.following = playing;
    this.changed();
  }

  destroy() {
    clearTimeout(this.timer);
    clearTimeout(this.asked);
    this.playing = this.following = false;
    this.listeners.clear();
    this.places.clear();
  }
}
