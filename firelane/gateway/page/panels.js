// What lies beside the conversation on a wide screen: a button opens it on a narrow one, over the whole page.

import { byId } from "./dom.js";

const NARROW = matchMedia("(max-width: 900px)");
const BEHIND = [".top", ".stage"];

export class Panels {
  // panels: {id of the button: id of what it opens}.
  constructor(panels) {
    this.panels = panels;
    for (const opener of Object.keys(panels)) byId(opener).addEventListener("click", () => this._toggle(opener));
    for (const close of document.querySelectorAll("[data-closes]")) close.addEventListener("click", () => this.close());
    NARROW.addEventListener("change", () => this._cover());
  }

  // Closes what covers the page. Whether something did.
  close() {
    const opener = NARROW.matches ? this._opened : undefined;
    if (!opener) return false;
    this._toggle(opener);
    byId(opener).focus();
    return true;
  }

  get _opened() {
    return Object.keys(this.panels).find((opener) => byId(opener).getAttribute("aria-expanded") === "true");
  }

  _toggle(opener) {
    const panel = byId(this.panels[opener]);
    const open = panel.classList.toggle("open");
    byId(opener).setAttribute("aria-expanded", String(open));
    this._cover();
    if (open) panel.querySelector("input:checked, .quiet:not([data-closes])").focus();
  }

  // What lies behind an open panel cannot be reached meanwhile.
  _cover() {
    const covered = NARROW.matches && Boolean(this._opened);
    for (const part of BEHIND) document.querySelector(part).inert = covered;
  }
}
