// Text to the clipboard, also where the browser gives scripts none: on an origin that is not secure.

import { announce } from "./dom.js";

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text); // only of secure origins, localhost among them
  } catch {
    copySelected(text);
  }
  announce("Copied.");
}

function copySelected(text) {
  const area = document.createElement("textarea");
  area.value = text;
  const top = document.querySelector("dialog[open]") ?? document.body;
  top.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
