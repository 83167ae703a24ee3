// How one turn of a conversation looks: its text, what can be done with it, what the answer cost.

import { resultName } from "./calls.js";
import { ChoiceView } from "./choice.js";
import { button, el } from "./dom.js";
import { count, figure, seconds } from "./format.js";
import { figures } from "./request.js";

const NAMES = {
  chat: { user: "You", assistant: "Model" },
  completion: { user: "Prompt", assistant: "Completion" },
};
const ENDS = { length: "token limit reached", tool_calls: "tool call", content_filter: "filtered" };

// `acts`: {edit, resend, copy, code, use} as far as they apply, functions of no argument.
export class TurnView {
  // turn: of the conversation; markdown: draw the model's words so; pick(i): the reader goes on with choice i.
  constructor(mode, { role, name, choices }, markdown, pick) {
    this.name = role === "tool" ? resultName(name) : NAMES[mode][role];
    this.heading = el("h3", {}, this.name);
    this.actions = el("div", { class: "actions" });
    this.choices = choices.map(() => new ChoiceView(markdown && role === "assistant"));
    this.columns = el("div", { class: "choices" }, ...this.choices.map((choice) => choice.node));
    this.body = el("div", { class: "body" }, this.columns);
    this.node = el("li", { class: `turn ${role} ${mode}${choices.length > 1 ? " several" : ""}` },
      el("article", { "aria-label": this.name }, el("header", {}, this.heading, this.actions), this.body));
    if (choices.length > 1) this.choices.forEach((one, i) => one.setNumber(i, choices.length, () => pick(i)));
  }

  setActions(acts) {
    const labels = { edit: "Edit", resend: "Resend", use: "Use as prompt", copy: "Copy", code: "Code" };
    const buttons = Object.entries(labels).filter(([name]) => acts[name]).map(([name, label]) =>
      button(label, acts[name], { "aria-label": `${label}: ${this.name.toLowerCase()}` }));
    this.actions.replaceChildren(...buttons);
  }

  // Draws all choices as they are known; `picked` is the one that the conversation goes on with.
  set({ choices, picked }) {
    choices.forEach((choice, i) => this.choices[i].set(choice));
    this.setPicked(picked);
  }

  setPicked(picked) {
    this.choices.forEach((choice, i) => choice.setPicked(i === picked));
  }

  // A piece of choice i of an answer.
  add(part, whole, i) {
    this.choices[i]?.add(part, whole);
  }

  // The answer is complete.
  finish(choices) {
    choices.forEach((choice, i) => this.choices[i].finish(choice));
  }

  // Asks for the results of the picked choice's calls, or no more: see CallsView.ask.
  askResults({ choices, picked }, done) {
    this.choices.forEach((choice, i) => choice.calls?.ask(choices[i].calls, i === picked ? done : null));
  }

  // Offers to go on where the answer met its limit of tokens, or no more: more() does it.
  offerMore(more) {
    this.body.querySelector(".more")?.remove();
    if (more) this.body.append(button("Continue", more, { class: "more", "aria-label": "Continue this answer" }));
  }

  setBusy(busy) {
    this.node.classList.toggle("busy", busy);
    for (const { text } of this.choices) text.setAttribute("aria-busy", String(busy));
  }

  // What stands below a finished answer: [text].
  setFigures(texts) {
    this.body.querySelector(".figures")?.remove();
    this.body.append(el("ul", { class: "figures", "aria-label": "Figures of this answer" },
      ...texts.map((text) => el("li", {}, text))));
  }

  // Takes away what stands below an answer that goes on.
  clearEnd() {
    for (const node of this.body.querySelectorAll(".figures, .error, .more")) node.remove();
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

  // Replaces the columns by an editor. `label`: of the button that calls done(text), which is false when the text
  // cannot be taken now.
  edit(text, label, done) {
    const area = el("textarea", { "aria-label": `Edit: ${this.name.toLowerCase()}`, rows: "3" });
    area.value = text;
    const form = el("form", { class: "editor", novalidate: true }, area);
    const close = () => {
      form.remove();
      this.columns.hidden = false;
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
    this.columns.hidden = true;
    this.actions.hidden = true;
    this.columns.after(form);
    area.focus();
    area.style.blockSize = `${Math.min(area.scrollHeight + 4, 320)}px`;
  }
}

// The figures of a finished answer, in words. structured: what is to be said of its form, or ""; named: say which
// model it was.
export function figureTexts(request, answer, structured, named) {
  const f = figures(request, answer);
  const ends = new Set(answer.choices.map(({ finish }) => ENDS[finish]).filter((end) => end));
  const texts = answer.stopped ? ["stopped"] : [...ends];
  if (named) texts.push(request.body.model);
  if (structured) texts.push(structured);
  if (f.output !== null) texts.push(`${f.exact ? "" : "about "}${count(f.output)} tokens`);
  if (f.prompt !== null) texts.push(`${count(f.prompt)} in prompt${f.cached ? `, ${count(f.cached)} cached` : ""}`);
  if (f.ttftS !== null) texts.push(`first token ${seconds(f.ttftS)}`);
  if (f.rate !== null) texts.push(`${figure(f.rate)} tok/s`);
  texts.push(`${seconds(f.totalS)} in all`);
  return texts;
}
