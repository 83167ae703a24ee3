// The turns of both modes, and what may be done with them: send, stop, edit, resend, clear.

import { announce, byId, el } from "./dom.js";
import { figures, makeRequest, run } from "./request.js";
import { SettingError } from "./settings.js";
import { copyText, showCode } from "./dialogs.js";
import { TurnView } from "./turns.js";

const NEAR_PX = 80;

export class Conversation {
  // onUnauthorized: a key is needed.
  constructor(settings, onUnauthorized) {
    Object.assign(this, { settings, onUnauthorized, running: null, refused: "" });
    this.turns = { chat: [], completion: [] };
    this.list = byId("turns");
    this.scroll = byId("scroll");
    settings.onMode = () => this.show();
    this.show();
  }

  get mode() {
    return this.settings.mode;
  }

  // Draws the turns of the mode.
  show() {
    const nodes = this.turns[this.mode].map((turn) => turn.view.node);
    if (nodes.length !== this.list.children.length || nodes.some((node, i) => this.list.children[i] !== node)) {
      this.list.replaceChildren(...nodes);
    }
    byId("empty").hidden = nodes.length > 0;
    byId("clear").hidden = nodes.length === 0;
    byId("stop").hidden = !this.running;
    byId("send").hidden = Boolean(this.running);
  }

  // Asks with a new turn of the reader. False when a setting is wrong, or an answer is on its way.
  send(text) {
    return this._ask([...this.turns[this.mode], this._turn("user", text)]);
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.turns[this.mode] = [];
    this.show();
    announce("Cleared.");
  }

  _turn(role, text) {
    const mode = this.mode;
    const turn = { role, text, view: new TurnView(mode, role) };
    turn.view.setText(text);
    const copy = () => copyText(turn.text);
    if (role === "user") {
      turn.view.setActions({ edit: () => this._edit(turn), copy });
    } else {
      turn.acts = { edit: mode === "chat" ? () => this._rewrite(turn) : null, resend: () => this._again(turn), copy };
      turn.acts.use = mode === "completion" ? () => this._continue(turn) : null;
      turn.acts.code = () => showCode(turn.request);
    }
    return turn;
  }

  _before(turn) {
    const turns = this.turns[this.mode];
    return turns.slice(0, turns.indexOf(turn));
  }

  _edit(turn) {
    turn.view.edit(turn.text, "Send", (text) =>
      this._askAgain([...this._before(turn), this._turn("user", text)]));
  }

  // The model's words, put into its mouth: the next question builds on them.
  _rewrite(turn) {
    turn.view.edit(turn.text, "Save", (text) => {
      turn.text = text;
      turn.view.setText(text);
    });
  }

  _again(turn) {
    this._askAgain(this._before(turn));
  }

  // Where the reader was is gone: the conversation gets the focus.
  _askAgain(turns) {
    const asked = this._ask(turns);
    if (asked) this.scroll.focus({ preventScroll: true });
    return asked;
  }

  _continue(turn) {
    const field = byId("message");
    field.value = this._before(turn).at(-1).text + turn.text;
    field.focus();
    field.scrollTop = field.scrollHeight;
  }

  // Makes `turns`, whose last one is the reader's, the conversation, and gets its answer.
  _ask(turns) {
    const why = this.running ? "An answer is on its way: stop it first." : this.refused;
    if (why) {
      announce(why);
      return false;
    }
    const request = this._request(turns);
    if (!request) return false;
    const turn = this._turn("assistant", "");
    turn.request = request;
    this.turns[this.mode] = [...turns, turn];
    this._answer(turn);
    return true;
  }

  _request(turns) {
    try {
      return makeRequest(this.mode, turns, this.settings.read());
    } catch (error) {
      if (!(error instanceof SettingError)) throw error;
      this._pointAt(error.input, error.message);
      announce(error.message);
      return null;
    }
  }

  _pointAt(input, message) {
    this.settings.mark(input, message);
    if (input.offsetParent === null) byId("open-settings").click();
    input.focus();
    byId(`${input.id}-wrong`).scrollIntoView({ block: "nearest" });
  }

  async _answer(turn) {
    const { view, request } = turn;
    this.running = new AbortController();
    this.show();
    view.setBusy(true);
    this.scroll.scrollTop = this.scroll.scrollHeight;
    announce("The model answers.");
    const answer = await run(request, this.running.signal, (part) => {
      view.add(part);
      this._follow();
    });
    this.running = null;
    turn.text = answer.text;
    view.setBusy(false);
    view.setActions(answer.text ? turn.acts : { resend: turn.acts.resend, code: turn.acts.code });
    if (answer.error) this._failed(view, answer.error);
    if (!answer.error || answer.pieces) this._finished(view, request, answer);
    this.show();
    this._follow();
  }

  _finished(view, request, answer) {
    view.setFigures(request, answer, structured(request, answer));
    if (answer.error) return;
    const { output } = figures(request, answer);
    announce(answer.stopped ? "Stopped." : `The answer is complete: ${output ?? 0} tokens.`);
  }

  _failed(view, error) {
    view.setError(error);
    const input = this.settings.inputOf(error.param);
    if (input) this.settings.mark(input, "The server did not accept this.");
    if (error.status === 401) this.onUnauthorized();
  }

  // Keeps the end in sight, unless the reader has scrolled away from it.
  _follow() {
    if (this.frame) return;
    const box = this.scroll;
    const page = document.scrollingElement;
    const near = (one) => one.scrollHeight - one.scrollTop - one.clientHeight < NEAR_PX;
    const boxed = getComputedStyle(box).overflowY === "auto";
    const target = boxed ? box : page;
    if (!near(target)) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      target.scrollTop = target.scrollHeight;
    });
  }
}

// Whether an answer that was to be JSON is.
function structured({ body }, answer) {
  if (!body.response_format || answer.error) return "";
  try {
    JSON.parse(answer.text);
    return "valid JSON";
  } catch {
    return "not complete JSON";
  }
}

export const exampleList = (examples, use) =>
  examples.map((text) => el("li", {}, el("button", { type: "button", onclick: () => use(text) }, text)));
