// Keeps the end of an answer in sight while it grows, unless the reader has scrolled away from it.

const NEAR_PX = 80;

export class Follow {
  constructor(box) {
    Object.assign(this, { box, frame: null });
  }

  // What scrolls: the box, or on a narrow screen the page.
  get _target() {
    return getComputedStyle(this.box).overflowY === "auto" ? this.box : document.scrollingElement;
  }

  toEnd() {
    this._target.scrollTop = this._target.scrollHeight;
  }

  soon() {
    if (this.frame) return;
    const target = this._target;
    if (target.scrollHeight - target.scrollTop - target.clientHeight >= NEAR_PX) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      target.scrollTop = target.scrollHeight;
    });
  }
}
