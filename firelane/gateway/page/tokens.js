// Tokens that show their probabilities: under the pointer, or with the arrow keys.

import { byId, el } from "./dom.js";
import { percent, visible } from "./format.js";

const AHEAD = 8; // tokens to look past when one is not found in the text

// Pieces [text, token] of a text and the tokens that made it. A token may be a part of a character, or differ
// from the text by a blank: such ones share a piece with their neighbours.
export function align(text, tokens) {
  if (tokens.length === 1) return text ? [[text, tokens[0]]] : [];
  const pieces = [];
  let at = 0;
  for (let i = 0; i < tokens.length && at < text.length; ) {
    const [next, found] = nextStart(text, at, tokens, i);
    pieces.push([text.slice(at, found), tokens[i]]);
    at = found;
    i = next;
  }
  if (at < text.length && pieces.length) pieces.at(-1)[0] += text.slice(at);
  return pieces;
}

// Where token i ends: [the next token, where it begins].
function nextStart(text, at, tokens, i) {
  const own = tokens[i].text;
  if (own && text.startsWith(own, at)) return [i + 1, at + own.length];
  for (let next = i + 1; next < Math.min(tokens.length, i + AHEAD); next += 1) {
    const found = tokens[next].text ? text.indexOf(tokens[next].text, at + 1) : -1;
    if (found > at && found - at <= 4 * AHEAD) return [next, found];
  }
  return [tokens.length, text.length];
}

const level = (logprob) => {
  const p = Math.exp(logprob);
  return p >= 0.9 ? 0 : p >= 0.6 ? 1 : p >= 0.3 ? 2 : p >= 0.1 ? 3 : 4;
};

export function tokenSpan(text, token) {
  if (token.logprob === null || token.logprob === undefined) return document.createTextNode(text);
  const span = el("span", { class: `token p${level(token.logprob)}`, tabindex: "-1" });
  span.textContent = text;
  span.token = token;
  return span;
}

function bar(token, chosen) {
  const p = Math.exp(token.logprob);
  const fill = el("span", { class: "fill" });
  fill.style.inlineSize = `${Math.max(p * 100, 0.5)}%`;
  return el("li", { class: chosen ? "chosen" : "" },
    el("span", { class: "name" }, visible(token.text)),
    el("span", { class: "bar", "aria-hidden": "true" }, fill),
    el("span", { class: "value" }, percent(p), chosen ? el("span", { class: "unseen" }, ", chosen") : null));
}

// One card for the page, beside the token that it speaks of.
class Card {
  show(span) {
    const { token } = span;
    const chosen = { text: token.text, logprob: token.logprob };
    const others = token.top.filter((other) => other.text !== token.text);
    const rows = [...others, chosen].sort((a, b) => b.logprob - a.logprob);
    const card = byId("token-card");
    card.replaceChildren(el("ul", {}, ...rows.map((row) => bar(row, row === chosen))));
    card.hidden = false;
    this.hideFrom();
    this.span = span;
    span.setAttribute("aria-describedby", "token-card");
    span.classList.add("shown");
    this._place(card, span.getClientRects()[0] ?? span.getBoundingClientRect());
  }

  _place(card, box) {
    const { offsetWidth: width, offsetHeight: height } = card;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
    const below = box.bottom + 6;
    const fits = below + height < window.innerHeight;
    card.style.left = `${left}px`;
    card.style.top = `${fits ? below : Math.max(8, box.top - height - 6)}px`;
  }

  hideFrom() {
    this.span?.removeAttribute("aria-describedby");
    this.span?.classList.remove("shown");
    this.span = null;
  }

  hide() {
    this.hideFrom();
    byId("token-card").hidden = true;
  }
}

const card = new Card();
const tokenOf = (event) => (event.target.classList?.contains("token") ? event.target : null);

// Makes the tokens within a text answer to pointer and keys: one stop of the Tab key, then the arrows.
export function makeTokensKeys(box) {
  const move = (from, by) => {
    const all = [...box.querySelectorAll(".token")];
    const to = all[Math.max(0, Math.min(all.length - 1, all.indexOf(from) + by))];
    to?.focus();
  };
  box.addEventListener("pointerover", (event) => { if (tokenOf(event)) card.show(tokenOf(event)); });
  box.addEventListener("pointerleave", () => card.hide());
  box.addEventListener("click", (event) => tokenOf(event)?.focus());
  box.addEventListener("focusin", (event) => {
    const span = tokenOf(event);
    if (!span) return;
    box.querySelector('.token[tabindex="0"]')?.setAttribute("tabindex", "-1");
    span.setAttribute("tabindex", "0");
    card.show(span);
  });
  box.addEventListener("focusout", () => card.hide());
  box.addEventListener("keydown", (event) => {
    const span = tokenOf(event);
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (!span) return;
    if (event.key === "Escape") card.hide();
    else if (by) {
      event.preventDefault();
      move(span, by);
    }
  });
}

// What the Tab key reaches first in a text that has just got its tokens.
export function makeTokensReachable(box) {
  if (!box.querySelector('.token[tabindex="0"]')) box.querySelector(".token")?.setAttribute("tabindex", "0");
}

window.addEventListener("scroll", () => card.hide(), { capture: true, passive: true });
