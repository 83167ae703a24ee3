// Keeps the end of an answer in sight while it grows, unless the reader has scrolled away from it.

const END_PX = 4; // so near, the reader is at the end

export class Follow {
  constructor(box) {
    Object.assign(this, { box, frame: null, follows: true, top: 0 });
    const passive = { passive: true };
    for (const source of [box, document]) source.addEventListener("scroll", () => this._scrolled(), passive);
    // A wheel is heard before what it moves has moved: nothing may pull against it meanwhile.
    box.addEventListener("wheel", ({ deltaY }) => { if (deltaY < 0) this.follows = false; }, passive);
  }

  // What scrolls: the box, or on a narrow screen the page.
  get _target() {
    return getComputedStyle(this.box).overflowY === "auto" ? this.box : document.scrollingElement;
  }

  // The reader goes up, and no longer follows; back at the end the answer takes him along again.
  _scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this._target;
    if (scrollHeight - scrollTop - clientHeight <= END_PX) this.follows = true;
    else if (scrollTop < this.top) this.follows = false;
    this.top = scrollTop;
  }

  toEnd() {
    this.follows = true;
    this._target.scrollTop = this._target.scrollHeight;
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (this.follows) this._target.scrollTop = this._target.scrollHeight;
    });
  }
}
