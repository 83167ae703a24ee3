// How long the model has been loading, and how long it may still take, from what the page has seen of it.

import { duration } from "./format.js";

const LEAST_S = 2; // of watching, before a guess is worth a word

export class Loading {
  constructor() {
    this.reset();
  }

  reset() {
    Object.assign(this, { sinceS: null, stage: "", first: null });
  }

  // A sentence about the state now. progress: {stage, done, total} or null; nowS: a clock of seconds.
  say(progress, nowS) {
    this.sinceS ??= nowS;
    if (progress && progress.stage !== this.stage) {
      this.stage = progress.stage;
      this.first = { done: progress.done, timeS: nowS };
    }
    const waited = nowS - this.sinceS >= 1 ? ` Waiting for ${duration(nowS - this.sinceS)}.` : "";
    const leftS = progress ? this._leftS(progress, nowS) : null;
    return leftS === null ? waited : `${waited} About ${duration(Math.max(1, Math.ceil(leftS)))} left of this step.`;
  }

  // Seconds to the stage's end at the speed seen so far, or null.
  _leftS({ done, total }, nowS) {
    const passedS = nowS - this.first.timeS;
    const made = done - this.first.done;
    if (passedS < LEAST_S || made <= 0 || !(total > done)) return null;
    return ((total - done) * passedS) / made;
  }
}
