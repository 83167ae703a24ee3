// The list of kept conversations: open, rename, export, delete.

import { announce, button, byId, el } from "./dom.js";
import { forget, keep, keptConversation, keptConversations, onOtherTabs } from "./store.js";

const fileName = (title) => `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "conversation"}.json`;

function download(name, value) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000); // the download has begun by then
}

export class Library {
  // conversation: the one on show, with open(kept), startNew(), discard(), renamed(title) and an id.
  constructor(conversation) {
    this.conversation = conversation;
    this.list = byId("kept");
    this.doomed = [];
    byId("new").addEventListener("click", () => {
      this._fold();
      conversation.startNew();
    });
    byId("export-all").addEventListener("click", () => download("firelane-conversations.json", keptConversations()));
    byId("delete-all").addEventListener("click", () => this._ask(keptConversations()));
    byId("delete-form").addEventListener("submit", (event) => this._delete(event));
    onOtherTabs(() => this.draw());
    this.draw();
  }

  draw() {
    const kept = keptConversations();
    this.list.replaceChildren(...kept.map((one) => this._item(one)));
    byId("none-kept").hidden = kept.length > 0;
    byId("all-row").hidden = kept.length === 0;
  }

  _item(one) {
    const open = one.id === this.conversation.id;
    const title = button(one.title, () => this._open(one.id), { class: "quiet title", "aria-current": open ? "true" : null });
    const item = el("li", {}, title);
    if (open) item.append(this._actions(one, item));
    return item;
  }

  _actions(one, item) {
    const named = (label) => ({ "aria-label": `${label}: ${one.title}` });
    return el("div", { class: "actions" },
      button("Rename", () => this._rename(one, item), named("Rename")),
      button("Export", () => this._export(one.id), named("Export")),
      button("Delete", () => this._ask([one]), named("Delete")));
  }

  _open(id) {
    const kept = keptConversation(id);
    if (kept) this.conversation.open(kept);
    else this.draw(); // another tab has deleted it
    if (this._fold()) byId("scroll").focus({ preventScroll: true });
    else this.list.querySelector("[aria-current]")?.focus();
  }

  // Makes room for the conversation where the list hides it. Whether it did.
  _fold() {
    const opener = byId("open-library");
    const folds = opener.getAttribute("aria-expanded") === "true" && opener.checkVisibility();
    if (folds) opener.click();
    return folds;
  }

  _export(id) {
    const kept = keptConversation(id);
    if (kept) download(fileName(kept.title), kept);
  }

  _rename(one, item) {
    const input = el("input", { type: "text", "aria-label": "New name", maxlength: "80" });
    input.value = one.title;
    const done = () => {
      this.draw();
      this.list.querySelector("[aria-current]")?.focus();
    };
    const form = el("form", { class: "rename" }, input, el("button", { type: "submit", class: "strong" }, "Save"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._name(one.id, input.value.trim());
      done();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      done();
    });
    item.replaceChildren(form);
    input.select();
  }

  _name(id, title) {
    const kept = keptConversation(id);
    if (!kept || !title) return;
    keep({ ...kept, title, named: true });
    if (id === this.conversation.id) this.conversation.renamed(title);
    announce("Renamed.");
  }

  _ask(doomed) {
    this.doomed = doomed.map(({ id }) => id);
    const what = doomed.length === 1 ? `“${doomed[0].title}”` : `all ${doomed.length} conversations`;
    byId("delete-text").textContent = `Delete ${what}? This cannot be undone.`;
    byId("delete-dialog").showModal();
  }

  _delete(event) {
    event.preventDefault();
    byId("delete-dialog").close();
    for (const id of this.doomed) forget(id);
    if (this.doomed.includes(this.conversation.id)) this.conversation.discard();
    this.draw();
    byId("new").focus();
    announce("Deleted.");
  }
}
