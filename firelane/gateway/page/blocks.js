// Markdown's blocks: text -> [{kind, source, ...}], nothing drawn. Quotes and lists hold blocks in turn.

const DEEPEST = 8; // of lists and quotes; what lies deeper is a paragraph
const FENCE = /^( {0,3})(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)|\s*$)/;
const DELIMITER = /^:?-+:?$/;
const blank = (line) => line === undefined || !line.trim();
const indentOf = (line) => line.length - line.trimStart().length;
const indented = (line) => line.startsWith("\t") || indentOf(line) >= 2;
const isDeep = (line) => /^(?: {4}|\t)\s*\S/.test(line);
// A line without up to `width` blanks of its indentation, or without its first tab.
const dedent = (line, width) => line.slice(line.startsWith("\t") ? 1 : Math.min(width, indentOf(line)));

class Reader {
  constructor(lines, depth) {
    Object.assign(this, { lines, depth, at: 0, blocks: [] });
  }

  read() {
    while (this.at < this.lines.length) {
      const from = this.at;
      if (blank(this.lines[from])) {
        this.at += 1;
        continue;
      }
      const block = this._next();
      block.source = this.lines.slice(from, this.at).join("\n");
      this.blocks.push(block);
    }
    return this.blocks;
  }

  _next() {
    const line = this.lines[this.at];
    const nests = this.depth < DEEPEST;
    const fence = FENCE.exec(line);
    if (fence) return this._code(fence);
    if (HEADING.test(line)) return this._heading(HEADING.exec(line));
    if (RULE.test(line)) return this._rule();
    if (nests && QUOTE.test(line)) return this._quote();
    if (nests && ITEM.test(line)) return this._list();
    if (this._isTable(this.at)) return this._table();
    return this._paragraph();
  }

  // Until the fence that ends it, or the end: a model may still be writing.
  _code([, indent, fence, info]) {
    const lines = [];
    let open = true;
    for (this.at += 1; open && this.at < this.lines.length; this.at += 1) {
      const line = this.lines[this.at];
      const end = line.trim();
      open = !(end.length >= fence.length && end === fence[0].repeat(end.length));
      if (open) lines.push(indent ? dedent(line, indent.length) : line);
    }
    return { kind: "code", language: info.trim().split(/\s/)[0].slice(0, 40), text: lines.join("\n") };
  }

  _heading([before, marks]) {
    const text = this.lines[this.at].slice(before.length).trim().replace(/(?:^|\s)#+$/, "");
    this.at += 1;
    return { kind: "heading", level: marks.length, text };
  }

  _rule() {
    this.at += 1;
    return { kind: "rule" };
  }

  _quote() {
    const lines = [];
    for (; this.at < this.lines.length && QUOTE.test(this.lines[this.at]); this.at += 1) {
      lines.push(this.lines[this.at].replace(QUOTE, ""));
    }
    return { kind: "quote", blocks: read(lines, this.depth + 1) };
  }

  _list() {
    const [, , first] = ITEM.exec(this.lines[this.at]);
    const kind = (mark) => (mark.length > 1 ? mark.at(-1) : mark);
    const ordered = first.length > 1;
    const items = [];
    for (;;) {
      items.push(read(this._item(), this.depth + 1));
      let next = this.at;
      while (next < this.lines.length && blank(this.lines[next])) next += 1;
      const found = next < this.lines.length && !RULE.test(this.lines[next]) && ITEM.exec(this.lines[next]);
      if (!found || kind(found[2]) !== kind(first)) break;
      this.at = next;
    }
    return { kind: "list", ordered, start: ordered ? Number.parseInt(first, 10) : 1, items };
  }

  // The lines of one item without their indentation. Two blanks are enough: models write so.
  _item() {
    const found = ITEM.exec(this.lines[this.at]);
    const width = found[0].length;
    const lines = [this.lines[this.at].slice(width)];
    this.at += 1;
    for (let next = this.at; next < this.lines.length; next += 1) {
      const line = this.lines[next];
      if (blank(line)) continue;
      const inside = indented(line);
      const lazy = !inside && next === this.at && !this._begins(next);
      if (!inside && !lazy) break;
      while (this.at <= next) {
        lines.push(dedent(this.lines[this.at], width));
        this.at += 1;
      }
    }
    return lines;
  }

  _isTable(at) {
    const [head, below] = [this.lines[at], this.lines[at + 1]];
    if (below === undefined || !head.includes("|") || !/^[\s|:-]+$/.test(below)) return false;
    const marks = cells(below);
    return marks.every((mark) => DELIMITER.test(mark)) && cells(head).length === marks.length;
  }

  _table() {
    const head = cells(this.lines[this.at]);
    const aligns = cells(this.lines[this.at + 1]).map((cell) => {
      const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
      return right ? (left ? "center" : "end") : "start";
    });
    const rows = [];
    for (this.at += 2; this.at < this.lines.length && !blank(this.lines[this.at]) && !this._begins(this.at); this.at += 1) {
      rows.push(cells(this.lines[this.at]).slice(0, head.length));
    }
    return { kind: "table", head, aligns, rows };
  }

  // Whether a line begins something other than a paragraph.
  _begins(at) {
    const line = this.lines[at];
    return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
  }

  _paragraph() {
    const from = this.at;
    do this.at += 1;
    while (this.at < this.lines.length && !blank(this.lines[this.at]) && !this._begins(this.at) && !this._isTable(this.at));
    const lines = this.lines.slice(from, this.at);
    if (this.depth === 0 && lines.some(isDeep)) return this._bareCode(from);
    return { kind: "paragraph", text: lines.map((line) => line.trim()).join("\n") };
  }

  // Code without a fence, as a model without a word of explanation writes it: lines that are indented as no prose
  // is, and those beside them. Deep lines behind blank ones go on with it.
  _bareCode(from) {
    for (;;) {
      let next = this.at;
      while (next < this.lines.length && blank(this.lines[next])) next += 1;
      if (next === this.lines.length || !isDeep(this.lines[next])) break;
      for (this.at = next + 1; this.at < this.lines.length && !blank(this.lines[this.at]) && !this._begins(this.at);) this.at += 1;
    }
    return { kind: "code", language: "", text: this.lines.slice(from, this.at).join("\n") };
  }
}

// A table's row: split at the bars that no backslash and no code hides.
export function cells(line) {
  const parts = line.trim().replace(/^\|/, "").match(/(?:\\.|`[^`|]*`|[^|\\]|\\$)*(?:\||$)/g) ?? [];
  const found = parts.map((part) => part.replace(/\|$/, "").replace(/\\\|/g, "|").trim());
  if (found.at(-1) === "" && found.length > 1) found.pop(); // the empty match at the end
  return found;
}

const read = (lines, depth) => new Reader(lines, depth).read();

export const blocks = (text) => read(text.replace(/\r\n?/g, "\n").split("\n"), 0);
