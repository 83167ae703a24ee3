// One of an answer's choices as it is shown: reasoning, text (plain, Markdown, or tokens), tool calls.

import { CallsView } from "./calls.js";
import { button, el } from "./dom.js";
import { Markdown } from "./markdown.js";
import { align, makeTokensKeys, makeTokensReachable, tokenSpan } from "./tokens.js";

export class ChoiceView {
  // markdown: draw the text so.
  constructor(markdown) {
    this.text = el("div", { class: markdown ? "text markdown" : "text" });
    this.node = el("div", { class: "choice" }, this.text);
    this.markdown = markdown ? new Markdown(this.text) : null;
    this.plain = null; // the text node at the end that takes further text
    this.calls = null;
    this.frame = null;
    this.foldedByHand = false;
    makeTokensKeys(this.text);
  }

  // Makes it one of several: pick() is called when the reader wants to go on with it.
  setNumber(index, count, pick) {
    const label = `Answer ${index + 1} of ${count}`;
    this.pick = button("Go on with this", pick, { "aria-pressed": "false", "aria-label": `Go on with answer ${index + 1}` });
    this.node.prepend(el("div", { class: "choice-head" }, el("h4", {}, label), this.pick));
    this.node.setAttribute("role", "group");
    this.node.setAttribute("aria-label", label);
  }

  setPicked(picked) {
    this.node.classList.toggle("picked", picked);
    this.pick?.setAttribute("aria-pressed", String(picked));
    if (this.pick) this.pick.textContent = picked ? "Going on with this" : "Go on with this";
  }

  // All of a choice that is known: kept, or rewritten.
  set({ text, reasoning, calls }) {
    this.plain = null;
    if (reasoning) this._reasoning().textContent = reasoning;
    if (text || calls?.length) this._foldReasoning();
    if (this.markdown) this.markdown.update(text);
    else this.text.textContent = text;
    if (calls?.length) this.setCalls(calls);
  }

  // A piece of an answer, as readChoice gives it, and the choice so far.
  add({ text, reasoning, calls, tokens }, whole) {
    if (reasoning) this._reasoning().append(reasoning);
    else if (text.trim() || calls.length) this._foldReasoning();
    if (calls.length) this.setCalls(whole.calls);
    if (tokens?.length) this._addTokens(text, tokens);
    else if (text && this.markdown) this._drawSoon(whole);
    else if (text) this._addPlain(text);
  }

  // Once a frame at most, however fast the pieces come.
  _drawSoon(whole) {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.markdown?.update(whole.text);
    });
  }

  _addTokens(text, tokens) {
    if (this.markdown) { // tokens have no place in Markdown
      this.markdown = null;
      this.text.classList.remove("markdown");
      this.text.replaceChildren();
    }
    this.plain = null;
    this.text.append(...align(text, tokens).map((piece) => tokenSpan(...piece)));
    makeTokensReachable(this.text);
  }

  _addPlain(text) {
    if (!this.plain) this.text.append(this.plain = document.createTextNode(""));
    this.plain.appendData(text);
  }

  // The answer is complete.
  finish(whole) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.markdown?.update(whole.text);
  }

  setCalls(calls) {
    if (!this.calls) this.node.append((this.calls = new CallsView()).node);
    this.calls.show(calls);
  }

  _reasoning() {
    const known = this.node.querySelector(".reasoning pre");
    if (known) return known;
    const pre = el("pre");
    const summary = el("summary", { onclick: () => { this.foldedByHand = true; } }, "Reasoning");
    this.text.before(el("details", { class: "reasoning", open: true }, summary, pre));
    return pre;
  }

  // Reasoning is shown while it comes, and folds when the answer does, unless the reader has decided.
  _foldReasoning() {
    if (!this.foldedByHand) this.node.querySelector(".reasoning")?.removeAttribute("open");
  }
}
