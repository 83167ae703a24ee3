// The dialogs: the key, and the request as code.

import { apiKey, keyIsKept, setApiKey } from "./api.js";
import { copyText } from "./clipboard.js";
import { byId } from "./dom.js";
import { curl, pythonProgram } from "./snippet.js";

let request = null;

export function showCode(of) {
  request = of;
  drawCode();
  byId("code-dialog").showModal();
}

function drawCode() {
  const language = document.querySelector("input[name=language]:checked").value;
  const make = language === "curl" ? curl : pythonProgram;
  byId("code").textContent = make(request, location.origin, apiKey() !== "");
  byId("copy-code").textContent = "Copy";
}

export function askForKey() {
  byId("key").value = apiKey();
  byId("remember-key").checked = keyIsKept();
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

// onKey: the key has changed.
export function setUpDialogs(onKey) {
  for (const close of document.querySelectorAll("[data-close]")) {
    close.addEventListener("click", () => close.closest("dialog").close());
  }
  for (const radio of document.querySelectorAll("input[name=language]")) radio.addEventListener("change", drawCode);
  byId("copy-code").addEventListener("click", async () => {
    await copyText(byId("code").textContent);
    byId("copy-code").textContent = "Copied";
  });
  byId("open-key").addEventListener("click", askForKey);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("key").value.trim(), byId("remember-key").checked);
    byId("key-dialog").close();
    onKey();
  });
}
