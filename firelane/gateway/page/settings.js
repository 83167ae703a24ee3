// The settings form: what it says, checked, as fields of a request.

import { byId, setText } from "./dom.js";
import { STRUCTURES, structureFields } from "./structured.js";
import { EXAMPLE, parseTools, toolFields } from "./tools.js";

const NUMBERS = [
  ...["temperature", "top_p", "top_k", "max_tokens", "seed", "min_p", "n"],
  ...["presence_penalty", "frequency_penalty", "repetition_penalty"],
];
const WHOLE = new Set(["top_k", "max_tokens", "seed", "n", "alternatives"]);
const OFF = new Set(["top_k", "min_p"]); // of a value 0
const LIMITS = { chat: "no limit", completion: "16" }; // of max_tokens, where none is set
const NAMES = { stop: "stop-strings", top_logprobs: "alternatives", logprobs: "alternatives" };
const OWN = new Set(["mode", "model"]); // no part of what a conversation keeps
const STRUCTURE_PARAMS = ["response_format", "structured_outputs"];

// A setting that cannot be sent. input: where it stands.
export class SettingError extends Error {
  constructor(input, message) {
    super(message);
    this.input = input;
  }
}

function number(input) {
  if (input.value === "" && !input.validity.badInput) return null;
  const value = Number(input.value);
  const label = input.labels[0].textContent;
  if (input.value === "" || !Number.isFinite(value)) throw new SettingError(input, `${label} is not a number.`);
  if (WHOLE.has(input.name) && !Number.isSafeInteger(value)) {
    throw new SettingError(input, `${label} must be a whole number of at most 15 digits.`);
  }
  const [min, max] = [input.min, input.max];
  if (min !== "" && value < Number(min)) throw new SettingError(input, `${label} must be ${min} or more.`);
  if (max !== "" && value > Number(max)) throw new SettingError(input, `${label} must be ${max} or less.`);
  return value;
}

const unescape = (line) => line.replace(/\\([nt\\])/g, (_, c) => ({ n: "\n", t: "\t", "\\": "\\" })[c]);

export class Settings {
  constructor(form) {
    this.form = form;
    this.texts = {}; // the structure editor's text, by kind
    this.kind = "";
    this.onMode = () => {};
    this.follows = []; // move the sliders to where their fields stand
    for (const range of form.querySelectorAll("input[type=range]")) this._slider(range);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => this._clear(event.target));
    form.addEventListener("keydown", (event) => this._stepFromDefault(event));
    form.addEventListener("reset", () => setTimeout(() => this._show()));
    form.addEventListener("change", () => this._show());
    byId("tools-example").addEventListener("click", () => this._exampleTools());
    this._show();
  }

  get mode() {
    return this.form.elements.mode.value;
  }

  // Whether answers are drawn so. A structured one is shown as it is.
  get markdown() {
    return this.mode === "chat" && byId("markdown").checked && !this.kind;
  }

  get severalModels() {
    return byId("model").options.length > 1;
  }

  _slider(range) {
    const input = byId(range.dataset.for);
    range.addEventListener("input", () => { input.value = range.value; });
    const follow = () => { range.value = input.value === "" ? input.placeholder : input.value; };
    this.follows.push(follow);
    input.addEventListener("input", follow);
    this.form.addEventListener("reset", () => setTimeout(follow));
  }

  // An empty field's steps begin at what holds in it, which it shows.
  _stepFromDefault({ key, target }) {
    const steps = key === "ArrowUp" || key === "ArrowDown";
    if (steps && target.type === "number" && target.value === "" && Number(target.placeholder)) target.value = target.placeholder;
  }

  _show() {
    for (const field of this.form.querySelectorAll("[data-chat]")) field.hidden = this.mode !== "chat";
    byId("max_tokens").placeholder = LIMITS[this.mode];
    this._toolChoices();
    byId("alternatives-field").hidden = !byId("logprobs").checked;
    const kind = byId("structure").value;
    if (kind !== this.kind) this._structure(kind);
    this.onMode(this.mode);
  }

  _structure(kind) {
    const editor = byId("structure-text");
    this.texts[this.kind] = editor.value;
    this.kind = kind;
    this._clear(editor);
    const structure = STRUCTURES[kind];
    byId("structure-field").hidden = !structure?.label;
    if (!structure?.label) return;
    setText(byId("structure-label"), structure.label);
    setText(byId("structure-help"), structure.help);
    editor.value = this.texts[kind] ?? structure.first;
  }

  _exampleTools() {
    const editor = byId("tools");
    if (!editor.value.trim()) editor.value = EXAMPLE;
    this._clear(editor);
    this._show();
    editor.focus();
    editor.setSelectionRange(0, 0);
    editor.scrollTop = 0;
  }

  // The tools of the editor, to be chosen among, and how many there are.
  _toolChoices() {
    const select = byId("tool_choice");
    const chosen = select.value;
    let names = [];
    try {
      names = parseTools(byId("tools").value).map((tool) => tool.function.name);
    } catch { /* said when it is sent */ }
    const given = [["", "The model decides"], ["required", "At least one call"], ["none", "No call"]];
    const all = [...given, ...names.map((name) => [`=${name}`, `Call ${name}`])];
    select.replaceChildren(...all.map(([value, label]) => new Option(label, value)));
    if (all.some(([value]) => value === chosen)) select.value = chosen;
    setText(byId("tools-count"), names.length ? ` (${names.length})` : "");
  }

  // What the form says, to be kept with a conversation: {id: text or true or false}.
  snapshot() {
    const inputs = [...this.form.elements].filter(({ id, type }) => id && !OWN.has(id) && type !== "button" && type !== "reset");
    return Object.fromEntries(inputs.map((input) => [input.id, input.type === "checkbox" ? input.checked : input.value]));
  }

  // The form as it was when `kept` was taken, and a mode.
  restore(kept, mode) {
    this.form.elements.mode.value = mode;
    for (const id of ["structure", "tools"]) this._restore(id, kept[id]);
    this._show(); // the editors and options that the others belong to
    for (const [id, value] of Object.entries(kept)) this._restore(id, value);
    this._show();
    this.form.dispatchEvent(new Event("change"));
  }

  _restore(id, value) {
    const input = byId(id);
    if (!input || !this.form.contains(input) || OWN.has(id)) return;
    if (input.type === "checkbox") input.checked = value === true;
    else if (typeof value === "string") input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // What holds in empty fields, which say so: {name: number}.
  setDefaults(values) {
    for (const [name, value] of Object.entries(values)) {
      const input = byId(name);
      if (input && NUMBERS.includes(name)) input.placeholder = value === 0 && OFF.has(name) ? "off" : String(value);
    }
    for (const follow of this.follows) follow();
  }

  // The served models, in the select; the chosen one stays.
  setModels(names) {
    const select = byId("model");
    if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(chosen)) select.value = chosen;
  }

  // Fields that chat and completions share, and `system`. Throws SettingError.
  read() {
    const fields = {};
    if (byId("model").value) fields.model = byId("model").value;
    for (const name of NUMBERS) {
      const value = number(byId(name));
      if (value !== null) fields[name] = value;
    }
    const stops = byId("stop-strings").value.split("\n").filter((line) => line).map(unescape);
    if (stops.length) fields.stop = stops;
    Object.assign(fields, this._structureFields(), this._logprobs(), this.mode === "chat" ? this._toolFields() : {});
    if (byId("stream").checked) Object.assign(fields, { stream: true, stream_options: { include_usage: true } });
    return { fields, system: byId("system").value };
  }

  _logprobs() {
    if (!byId("logprobs").checked) return {};
    const alternatives = number(byId("alternatives")) ?? 0;
    return this.mode === "chat" ? { logprobs: true, top_logprobs: alternatives } : { logprobs: alternatives };
  }

  _toolFields() {
    try {
      return toolFields(byId("tools").value, byId("tool_choice").value);
    } catch (error) {
      throw new SettingError(byId("tools"), error.message);
    }
  }

  _structureFields() {
    const editor = byId("structure-text");
    try {
      return structureFields(this.kind, editor.value);
    } catch (error) {
      throw new SettingError(editor, error.message);
    }
  }

  // Where a parameter of the server's envelope stands in the form, or null.
  inputOf(param) {
    const name = String(param ?? "").split(/[.[]/)[0];
    if (STRUCTURE_PARAMS.includes(name)) return byId(this.kind === "json_object" ? "structure" : "structure-text");
    const input = byId(NAMES[name] ?? name);
    return input && this.form.contains(input) ? input : null;
  }

  // Say beneath a field what is wrong with it.
  mark(input, message) {
    this._clear(input);
    const note = document.createElement("p");
    note.className = "wrong";
    note.id = `${input.id}-wrong`;
    note.textContent = message;
    input.setAttribute("aria-invalid", "true");
    input.dataset.helped = input.getAttribute("aria-describedby") ?? "";
    input.setAttribute("aria-describedby", `${input.dataset.helped} ${note.id}`.trim());
    input.closest(".field").append(note);
    input.closest("details")?.setAttribute("open", "");
  }

  _clear(input) {
    const note = byId(`${input.id}-wrong`);
    if (!note) return;
    note.remove();
    input.removeAttribute("aria-invalid");
    if (input.dataset.helped) input.setAttribute("aria-describedby", input.dataset.helped);
    else input.removeAttribute("aria-describedby");
  }
}
