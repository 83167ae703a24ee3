// Line charts of the last minutes, in SVG. One Chart is a card: its name, the figure that matters, the lines.

import { el, setText, svg } from "./dom.js";
import { KEEP_S } from "./stats.js";

const HEIGHT = 120;
const GAP_S = 5; // a longer pause between two samples is a break in the line
const PAD = { left: 44, right: 6, top: 8, bottom: 18 };

// The least round number that is not below `value`; its half is a whole number where `whole`.
export function niceTop(value, whole = false) {
  const least = whole ? Math.max(value, 2) : value;
  if (!(least > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return (whole ? [2, 4, 6, 10, 20] : [1, 2, 2.5, 5, 10]).map((m) => m * power).find((top) => top >= least * (1 - 1e-9));
}

// How many seconds to show: no more room than `passedS` needs.
export const spanFor = (passedS) => [60, 120].find((span) => passedS <= span) ?? KEEP_S;

// An SVG path through [x, y] points; null is a break.
export function pathOf(points) {
  let path = "";
  let pen = false;
  for (const point of points) {
    if (point) path += `${pen ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    pen = point !== null;
  }
  return path;
}

// lines: [{name, of: (figures) => number or null}]; format: number -> text, for values and axis; top: of the
// axis where it is fixed; whole: values are whole numbers; headline: (figures) -> [big, small].
export class Chart {
  constructor({ title, lines, format, headline, top = null, whole = false }) {
    Object.assign(this, { lines, format, headline, top, whole, figures: [], width: 0, spanS: KEEP_S, pointed: null });
    this.big = el("span", { class: "big" });
    this.small = el("span", { class: "small" });
    this.values = lines.map(() => el("dd"));
    const legend = el("dl", { class: "legend" }, ...lines.map(({ name }, i) =>
      el("div", { class: `line${i}` }, el("dt", {}, name), this.values[i])));
    this.when = el("span", { class: "when" });
    this.svg = svg("svg", { role: "img", "aria-label": `${title}, the last minutes` });
    this.node = el("figure", { class: "chart" },
      el("figcaption", {}, title), el("p", { class: "headline" }, this.big, this.small), this.svg,
      el("div", { class: "legend-row" }, legend, this.when));
    this.svg.addEventListener("pointermove", (event) => this._point(event));
    this.svg.addEventListener("pointerleave", () => { this.pointed = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  update(figures) {
    this.figures = figures;
    const [big, small] = this.headline(figures.at(-1));
    setText(this.big, big);
    setText(this.small, small);
    this.draw();
  }

  _point(event) {
    if (!this.figures.length) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const plot = this.width - PAD.left - PAD.right;
    const timeS = this.figures.at(-1).timeS - this.spanS * (1 - (x - PAD.left) / plot);
    const nearest = (a, b) => (Math.abs(b.timeS - timeS) < Math.abs(a.timeS - timeS) ? b : a);
    this.pointed = this.figures.reduce(nearest).timeS;
    this.draw();
  }

  draw() {
    const shown = this.figures.find((one) => one.timeS === this.pointed) ?? this.figures.at(-1);
    if (!shown) return;
    this.lines.forEach(({ of }, i) => setText(this.values[i], this.format(of(shown))));
    const agoS = Math.round(this.figures.at(-1).timeS - shown.timeS);
    setText(this.when, agoS ? `${agoS} s ago` : "");
    this.width = this.svg.clientWidth;
    if (!this.width) return; // not in sight
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const values = this.figures.flatMap((one) => this.lines.map(({ of }) => of(one) ?? 0));
    const top = this.top ?? niceTop(Math.max(...values), this.whole);
    this.spanS = spanFor(this.figures.at(-1).timeS - this.figures[0].timeS);
    this.svg.replaceChildren(...this._axis(top), ...this._paths(top), ...this._pointer(shown, top));
  }

  _x(timeS) {
    const plot = this.width - PAD.left - PAD.right;
    return PAD.left + plot * (1 - (this.figures.at(-1).timeS - timeS) / this.spanS);
  }

  _y(value, top) {
    return PAD.top + (HEIGHT - PAD.top - PAD.bottom) * (1 - value / top);
  }

  _axis(top) {
    const rows = [0, top / 2, top].flatMap((value) => {
      const y = this._y(value, top);
      return [
        svg("line", { class: value ? "grid" : "base", x1: PAD.left, x2: this.width - PAD.right, y1: y, y2: y }),
        svg("text", { class: "tick", x: PAD.left - 8, y: y + 3.5, "text-anchor": "end" }, this.format(value)),
      ];
    });
    const time = (x, anchor, text) => svg("text", { class: "tick", x, y: HEIGHT - 4, "text-anchor": anchor }, text);
    return [...rows, time(PAD.left, "start", `${this.spanS / 60} min ago`), time(this.width - PAD.right, "end", "now")];
  }

  _paths(top) {
    return this.lines.map(({ of }, i) => {
      const points = [];
      let lastS = null;
      for (const one of this.figures) {
        if (lastS !== null && one.timeS - lastS > GAP_S) points.push(null);
        const value = of(one);
        points.push(value === null ? null : [this._x(one.timeS), this._y(Math.min(value, top), top)]);
        lastS = one.timeS;
      }
      return svg("path", { class: `line line${i}`, d: pathOf(points) });
    });
  }

  _pointer(shown, top) {
    if (this.pointed === null) return [];
    const x = this._x(shown.timeS);
    const dots = this.lines.flatMap(({ of }, i) =>
      of(shown) === null ? [] : [svg("circle", { class: `dot line${i}`, cx: x, cy: this._y(of(shown), top), r: 3 })]);
    return [svg("line", { class: "pointer", x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom }), ...dots];
  }
}
