// The tool calls of an answer, and the form in which the reader gives their results.

import { el } from "./dom.js";

// What a call's arguments say, laid out where they are JSON.
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export class CallsView {
  constructor() {
    this.list = el("ol", { class: "call-list" });
    this.form = el("form", { class: "call-results", novalidate: true, hidden: true });
    this.node = el("section", { class: "calls", "aria-label": "Tool calls" }, this.list, this.form);
  }

  show(calls) {
    this.list.replaceChildren(...calls.map(({ name, arguments: args }) => el("li", {},
      el("p", { class: "call-name" }, name || "…"),
      el("pre", { tabindex: "0", role: "group", "aria-label": `Arguments of ${name}` }, pretty(args)))));
  }

  // Asks for results: done([text]) gets one for each call. A null `done` asks no more.
  ask(calls, done) {
    this.form.hidden = !done;
    this.form.replaceChildren();
    if (!done) return;
    const areas = calls.map(() => el("textarea", { rows: "2", class: "code", spellcheck: "false" }));
    const fields = calls.map(({ name }, i) => el("div", { class: "field" },
      el("label", {}, `Result of ${name}${calls.length > 1 ? ` (call ${i + 1})` : ""}`, areas[i])));
    this.form.append(...fields, el("div", { class: "editor-row" }, el("button", { type: "submit", class: "strong" },
      calls.length > 1 ? "Send results" : "Send result")));
    this.form.onsubmit = (event) => {
      event.preventDefault();
      done(areas.map((area) => area.value));
    };
    for (const area of areas) area.addEventListener("keydown", (event) => this._key(event));
  }

  _key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    const areas = [...this.form.querySelectorAll("textarea")];
    const next = areas[areas.indexOf(event.target) + 1];
    if (next) next.focus();
    else this.form.requestSubmit();
  }

  focus() {
    this.form.querySelector("textarea")?.focus();
  }
}

// A tool's result in the conversation.
export const resultName = (name) => `Result of ${name || "the tool"}`;
