// An answer's Markdown, drawn while it comes. Elements are made by hand from an own parser: nothing of the model's
// text is ever parsed as HTML, and what the parser does not know stays text.

import { blocks } from "./blocks.js";
import { copyText } from "./clipboard.js";
import { button, el, setText } from "./dom.js";
import { inline } from "./inline.js";

const TASK = /^\[([ xX])\]\s/;

function code(block) {
  const text = el("code", {}, block.text);
  const label = block.language || "text";
  const copy = button("Copy", () => copyText(text.textContent), { "aria-label": "Copy this code" });
  return el("div", { class: "code-block" },
    el("div", { class: "code-head" }, el("span", {}, label), copy),
    el("pre", { tabindex: "0", role: "group", "aria-label": `Code: ${label}` }, text));
}

// Headings of an answer are all one level below its own: the page's outline has no gaps, whatever the model writes.
const heading = (block) => el("h4", { class: `level${block.level}` }, ...inline(block.text));

function item(content) {
  const [first] = content;
  const task = first?.kind === "paragraph" && TASK.exec(first.text);
  if (!task) return el("li", {}, ...content.map(draw));
  const box = el("span", { role: "img", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐ " : "☑ ");
  const text = el("p", {}, box, ...inline(first.text.slice(task[0].length)));
  return el("li", { class: "task" }, text, ...content.slice(1).map(draw));
}

const list = (block) => el(block.ordered ? "ol" : "ul",
  block.ordered && block.start !== 1 ? { start: block.start } : {}, ...block.items.map(item));

function table({ head, aligns, rows }) {
  const row = (tag, texts) => el("tr", {}, ...texts.map((text, i) =>
    el(tag, { class: aligns[i], scope: tag === "th" ? "col" : null }, ...inline(text))));
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...rows.map((texts) => row("td", texts)))));
}

const DRAW = {
  code,
  heading,
  list,
  table,
  rule: () => el("hr"),
  quote: (block) => el("blockquote", {}, ...block.blocks.map(draw)),
  paragraph: (block) => el("p", {}, ...inline(block.text)),
};
const draw = (block) => DRAW[block.kind](block);

// Draws a text that grows into `box`. Blocks that are as before keep their nodes: what the reader has selected or
// focused stays, and a long answer costs no more per piece than its last block.
export class Markdown {
  constructor(box) {
    Object.assign(this, { box, shown: [] });
    box.replaceChildren();
  }

  update(text) {
    const now = blocks(text);
    let same = 0;
    while (same < now.length && this.shown[same]?.block.source === now[same].source) same += 1;
    const rest = this.shown.splice(same);
    now.slice(same).forEach((block, i) => this._put(block, rest[i]));
    for (const { node } of rest.slice(now.length - same)) node.remove();
  }

  _put(block, old) {
    if (old && old.block.kind === "code" && block.kind === "code" && old.block.language === block.language) {
      setText(old.node.querySelector("code"), block.text);
      this.shown.push({ block, node: old.node });
      return;
    }
    const node = draw(block);
    if (old) old.node.replaceWith(node);
    else this.box.append(node);
    this.shown.push({ block, node });
  }
}
