// How one turn of a conversation looks: its text, what can be done with it, what the answer cost.

import { button, el } from "./dom.js";
import { count, figure, seconds } from "./format.js";
import { figures } from "./request.js";
import { align, makeTokensKeys, makeTokensReachable, tokenSpan } from "./tokens.js";

const NAMES = {
  chat: { user: "You", assistant: "Model" },
  completion: { user: "Prompt", assistant: "Completion" },
};
const ENDS = { length: "token limit reached", tool_calls: "tool call", content_filter: "filtered" };

// `acts`: {edit, resend, copy, code, use} as far as they apply, functions of no argument.
export class TurnView {
  constructor(mode, role) {
    this.name = NAMES[mode][role];
    this.heading = el("h3", {}, this.name);
    this.actions = el("div", { class: "actions" });
    this.text = el("div", { class: "text" });
    this.body = el("div", { class: "body" }, this.text);
    this.node = el("li", { class: `turn ${role} ${mode}` },
      el("article", { "aria-label": this.name }, el("header", {}, this.heading, this.actions), this.body));
    makeTokensKeys(this.text);
    this.plain = null; // the text node at the end that takes further text
  }

  setActions(acts) {
    const labels = { edit: "Edit", resend: "Resend", use: "Use as prompt", copy: "Copy", code: "Code" };
    const buttons = Object.entries(labels).filter(([name]) => acts[name]).map(([name, label]) =>
      button(label, acts[name], { "aria-label": `${label}: ${this.name.toLowerCase()}` }));
    this.actions.replaceChildren(...buttons);
  }

  setText(text) {
    this.text.textContent = text;
    this.plain = null;
  }

  // A piece of an answer, as readChoice gives it.
  add({ text, reasoning, calls, tokens }) {
    if (reasoning) this._aside("reasoning", "Reasoning").append(reasoning);
    if (calls) this._aside("calls", "Tool calls").append(calls);
    if (tokens?.length) {
      this.plain = null;
      this.text.append(...align(text, tokens).map((piece) => tokenSpan(...piece)));
      makeTokensReachable(this.text);
    } else if (text) {
      if (!this.plain) this.text.append(this.plain = document.createTextNode(""));
      this.plain.appendData(text);
    }
  }

  _aside(kind, label) {
    const known = this.body.querySelector(`.${kind} pre`);
    if (known) return known;
    const pre = el("pre");
    this.text.before(el("details", { class: kind, open: true }, el("summary", {}, label), pre));
    return pre;
  }

  setBusy(busy) {
    this.node.classList.toggle("busy", busy);
    this.text.setAttribute("aria-busy", String(busy));
  }

  // The figures below a finished answer.
  setFigures(request, answer, structured) {
    const f = figures(request, answer);
    const items = [];
    const say = (text, title) => items.push(el("li", title ? { title } : {}, text));
    if (answer.stopped) say("stopped");
    else if (ENDS[answer.finish]) say(ENDS[answer.finish]);
    if (structured) say(structured);
    if (f.output !== null) say(`${f.exact ? "" : "about "}${count(f.output)} tokens`);
    if (f.prompt !== null) say(`${count(f.prompt)} in prompt${f.cached ? `, ${count(f.cached)} cached` : ""}`);
    if (f.ttftS !== null) say(`first token ${seconds(f.ttftS)}`, "Time to first token, as the browser saw it");
    if (f.rate !== null) say(`${figure(f.rate)} tok/s`);
    say(`${seconds(f.totalS)} in all`);
    this.body.append(el("ul", { class: "figures", "aria-label": "Figures of this answer" }, ...items));
  }

  // What the server's envelope says, word for word.
  setError(error) {
    const details = [
      error.status ? `HTTP ${error.status}` : "",
      error.type ?? "",
      error.param ? `field ${error.param}` : "",
      error.code && String(error.code) !== String(error.status) ? `code ${error.code}` : "",
      error.retryAfter ? `try again in ${error.retryAfter} s` : "",
      error.requestId ?? "",
    ].filter((detail) => detail);
    this.body.append(el("div", { class: "error", role: "alert" },
      el("p", {}, error.message), details.length ? el("p", { class: "error-details" }, details.join(" · ")) : null));
  }

  // Replaces the text by an editor. `label`: of the button that calls done(text), which is false when the text
  // cannot be taken now.
  edit(text, label, done) {
    const area = el("textarea", { "aria-label": `Edit: ${this.name.toLowerCase()}`, rows: "3" });
    area.value = text;
    const form = el("form", { class: "editor", novalidate: true }, area);
    const close = () => {
      form.remove();
      this.text.hidden = false;
      this.actions.hidden = false;
      if (this.node.isConnected) this.actions.querySelector("button")?.focus();
    };
    form.append(el("div", { class: "editor-row" },
      button("Cancel", close), el("button", { type: "submit", class: "strong" }, label)));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (done(area.value) !== false) close();
    });
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault();
        close();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.text.hidden = true;
    this.actions.hidden = true;
    this.text.after(form);
    area.focus();
    area.style.blockSize = `${Math.min(area.scrollHeight + 4, 320)}px`;
  }
}
