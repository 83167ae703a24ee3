// Markdown within a line: code, emphasis, links. Nodes come out; text goes in as text and is never parsed as HTML.
// The time is linear in the text, whatever it holds: what has no end is looked for once.

import { el } from "./dom.js";

const DEEPEST = 6; // emphasis within emphasis
const START = /\\[!-\/:-@[-`{-~]|`+|\*{1,3}|_{1,3}|~~|!?\[|https?:\/\/|</gi;
const LINK = /!?\[([^\[\]]{0,500})\]\(\s{0,9}<?([^\s<>()]{1,1000}(?:\([^\s<>()]{0,500}\)[^\s<>()]{0,500})?)>?(?:\s{1,9}"[^"]{0,300}")?\s{0,9}\)/y;
const BARE = /https?:\/\/[^\s<>"'`|\\]{1,2000}/iy;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2000})>/iy;
const TRAILING = /[.,;:!?*_~]+$/;
const WORD = /[\p{L}\p{N}]/u;
const TAGS = { 1: ["em"], 2: ["strong"], 3: ["strong", "em"] };

// The address of a link that may be followed, or null: http and https alone.
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

const link = (href, ...children) => el("a", { href, rel: "noopener noreferrer", target: "_blank", title: href }, ...children);

// A bare address without what belongs to the sentence around it.
function bareAddress(found) {
  let address = found.replace(TRAILING, "");
  while (address.endsWith(")") && !address.includes("(")) address = address.slice(0, -1).replace(TRAILING, "");
  return address;
}

class Line {
  constructor(text, depth) {
    Object.assign(this, { text, depth, at: 0, nodes: [], plain: "", endless: new Set() });
  }

  // All of it as nodes.
  read() {
    const { text } = this;
    while (this.at < text.length) {
      START.lastIndex = this.at;
      const found = START.exec(text);
      if (!found) break;
      this.plain += text.slice(this.at, found.index);
      this.at = found.index;
      if (!this._special(found[0])) this._say(found[0]);
    }
    this.plain += text.slice(this.at);
    this._flush();
    return this.nodes;
  }

  _special(mark) {
    if (mark[0] === "\\") return this._escaped(mark);
    if (mark[0] === "`") return this._code(mark);
    if (mark.endsWith("[")) return this._link();
    if (mark[0] === "h" || mark[0] === "H") return this._bare();
    if (mark === "<") return this._angled();
    return this.depth < DEEPEST && this._emphasis(mark);
  }

  _say(text) {
    this.plain += text;
    this.at += text.length;
  }

  _put(node, length) {
    this._flush();
    this.nodes.push(node);
    this.at += length;
    return true;
  }

  _flush() {
    if (this.plain) this.nodes.push(document.createTextNode(this.plain));
    this.plain = "";
  }

  _inner(text) {
    return new Line(text, this.depth + 1).read();
  }

  _escaped(mark) {
    this.plain += mark[1];
    this.at += 2;
    return true;
  }

  // Where the run of backticks of just this length begins again, or -1.
  _code(mark) {
    const from = this.at + mark.length;
    if (this.endless.has(mark)) return false;
    for (let end = this.text.indexOf(mark, from); end >= 0;) {
      let after = end + mark.length;
      while (this.text[after] === "`") after += 1;
      if (after === end + mark.length) {
        const code = this.text.slice(from, end);
        const padded = code.length > 2 && code.startsWith(" ") && code.endsWith(" ");
        return this._put(el("code", {}, padded ? code.slice(1, -1) : code), after - this.at);
      }
      end = this.text.indexOf(mark, after);
    }
    this.endless.add(mark);
    return false;
  }

  _link() {
    LINK.lastIndex = this.at;
    const found = LINK.exec(this.text);
    const address = found && safeAddress(found[2]);
    if (!address) return false;
    const label = this.depth < DEEPEST ? plainly(this._inner(found[1])) : [found[1]];
    return this._put(link(address, ...(found[1].trim() ? label : [found[2]])), found[0].length);
  }

  _bare() {
    BARE.lastIndex = this.at;
    const found = BARE.exec(this.text);
    const shown = found ? bareAddress(found[0]) : "";
    const address = safeAddress(shown);
    return Boolean(address) && this._put(link(address, shown), shown.length);
  }

  _angled() {
    ANGLED.lastIndex = this.at;
    const found = ANGLED.exec(this.text);
    const address = found && safeAddress(found[1]);
    return Boolean(address) && this._put(link(address, found[1]), found[0].length);
  }

  _emphasis(mark) {
    const from = this.at + mark.length;
    const before = this.text[this.at - 1] ?? " ";
    if (!this.text[from]?.trim() || (mark[0] === "_" && WORD.test(before))) return false;
    const end = this._end(mark, from);
    if (end < 0) return false;
    const tags = mark === "~~" ? ["del"] : TAGS[mark.length];
    const inner = this._inner(this.text.slice(from, end));
    const node = tags.reduceRight((children, tag) => [el(tag, {}, ...children)], inner)[0];
    return this._put(node, end + mark.length - this.at);
  }

  // Where emphasis ends: after a letter, and for _ before none; a longer run is one of another kind.
  _end(mark, from) {
    if (this.endless.has(mark)) return -1;
    for (let at = this.text.indexOf(mark, from); at >= 0;) {
      let after = at + mark.length;
      while (this.text[after] === mark[0]) after += 1;
      const run = after - at;
      const fits = run === mark.length || (run === 3 && mark.length < 3);
      const closes = at > from && this.text[at - 1].trim() && !(mark[0] === "_" && WORD.test(this.text[after] ?? " "));
      if (fits && closes) return after - mark.length;
      at = this.text.indexOf(mark, after);
    }
    this.endless.add(mark);
    return -1;
  }
}

// A link within a link is its text.
const plainly = (nodes) => nodes.map((node) => (node.nodeName === "A" ? document.createTextNode(node.textContent) : node));

export const inline = (text) => new Line(text, 0).read();
