// Elements made from plain values. Text is always set as text: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// el("button", {type: "button", onclick: f}, "Copy")
export const el = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);

export const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const button = (label, action, properties = {}) =>
  el("button", { type: "button", class: "quiet", onclick: action, ...properties }, label);

// Spoken by screen readers, once, after what they say now.
export function announce(text) {
  byId("announce").textContent = text;
}

// Sets the text only where it differs, so that nothing is laid out again for no change.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
