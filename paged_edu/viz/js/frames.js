// A recording whose every step was drawn and told beforehand, for views that play no engine; the player takes it for a trace.
import { Trace } from "./trace.js";

// frames: a list a step of variants, {said, ...}; `variant` says which one is shown and may be changed at any time.
export class Frames {
  constructor(frames, variant = 0) { Object.assign(this, { frames, variant }); }

  get firstStep() { return 0; }

  get lastStep() { return this.frames.length - 1; }

  at(step) { return this.frames[step][this.variant]; }

  events() { return []; }

  push() {}

  sentence(step) { return this.at(step).said; }
}

// Levels of something that a view computes by itself (LatencyCurves: thresholds), a whole number each.
export class Levels {
  constructor([first, last]) { Object.assign(this, { firstStep: first, lastStep: last }); }

  at(step) { return step; }

  events() { return []; }

  push() {}

  sentence() { return ""; }
}

export function recording(track) {
  if (track.levels) return new Levels(track.levels);
  return track.frames ? new Frames(track.frames, track.variant) : new Trace(track.header, track.events);
}
