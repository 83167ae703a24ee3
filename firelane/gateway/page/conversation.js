// The conversation on show, and what may be done with its turns: send, stop, edit, resend, answer tool calls.

import { announce, byId, el } from "./dom.js";
import { copyText } from "./clipboard.js";
import { showCode } from "./dialogs.js";
import { Follow } from "./follow.js";
import { makeRequest, newChoice, pickedOf, run } from "./request.js";
import { SettingError } from "./settings.js";
import { keep, newConversation, rememberOpen, titleOf } from "./store.js";
import { figureTexts, TurnView } from "./turns.js";

const ON_ITS_WAY = "An answer is on its way: stop it first.";

// A turn: {role, choices: [{text, reasoning, calls, finish}], picked, view}, of a tool also {callId, name}, of the
// model also {request, figures}. A turn of the reader or a tool has one choice: what was said.
export class Conversation {
  // onUnauthorized: a key is needed. onKept: the list of kept conversations has changed.
  constructor(settings, onUnauthorized) {
    Object.assign(this, { settings, onUnauthorized, running: null, refused: "", onKept: () => {} });
    this.kept = { chat: newConversation("chat"), completion: newConversation("completion") };
    this.turns = { chat: [], completion: [] };
    this.list = byId("turns");
    this.scroll = byId("scroll");
    this.follow = new Follow(this.scroll);
    settings.onMode = () => this.show();
    window.addEventListener("pagehide", () => this._saveRest());
    this.show();
  }

  get mode() {
    return this.settings.mode;
  }

  get id() {
    return this.kept[this.mode].id;
  }

  // Draws the turns of the mode.
  show() {
    const turns = this.turns[this.mode];
    const nodes = turns.map((turn) => turn.view.node);
    if (nodes.length !== this.list.children.length || nodes.some((node, i) => this.list.children[i] !== node)) {
      this.list.replaceChildren(...nodes);
    }
    byId("empty").hidden = nodes.length > 0;
    byId("stop").hidden = !this.running;
    byId("send").hidden = Boolean(this.running);
    for (const turn of turns.filter(({ role }) => role === "assistant")) {
      const asks = turn === turns.at(-1) && !this.running;
      turn.view.askResults(turn, asks ? (texts) => this._sendResults(turn, texts) : null);
      turn.view.offerMore(asks && this._isCut(turn) ? () => this._goOn(turn) : null);
    }
  }

  // Whether an answer met its limit of tokens where it can go on: a grammar or several answers cannot.
  _isCut({ choices }) {
    const [{ text, calls, finish }] = choices;
    return choices.length === 1 && finish === "length" && text !== "" && !calls?.length && !this.settings.kind;
  }

  // The reader is told, by eye and ear, why nothing happens.
  hold(why) {
    byId("held").hidden = !why;
    byId("held").textContent = why;
    if (why) announce(why);
  }

  // Asks with a new turn of the reader. False when a setting is wrong, or an answer is on its way.
  send(text) {
    const last = this.turns[this.mode].at(-1);
    if (last && !this.running && last.role === "assistant" && pickedOf(last).calls?.length) {
      this.hold("The model waits for the results of its tool calls: give them above, then write on.");
      last.view.node.querySelector(".call-results textarea")?.focus();
      return false;
    }
    return this._ask([...this.turns[this.mode], this._turn({ role: "user", choices: [newChoice(text)] })]);
  }

  stop() {
    this.running?.abort();
  }

  // A new one; the one before stays kept.
  startNew() {
    this._leave();
    this.discard();
    announce("A new conversation.");
    byId("message").focus();
  }

  // Forgets what is on show.
  discard() {
    this.stop();
    this.kept[this.mode] = newConversation(this.mode);
    this.turns[this.mode] = [];
    rememberOpen("");
    this.show();
    this.onKept();
  }

  // Shows a kept one, with its settings.
  open(kept) {
    this._leave();
    this.settings.restore(kept.settings ?? {}, kept.mode);
    this.kept[kept.mode] = { ...kept, turns: [] };
    this.turns[kept.mode] = kept.turns.map((turn) => this._turn(turn));
    rememberOpen(kept.id);
    this.show();
    this.onKept();
    this.follow.toEnd();
    announce(`Opened: ${kept.title}`);
  }

  renamed(title) {
    Object.assign(this.kept[this.mode], { title, named: true });
  }

  _leave() {
    this._saveRest();
    this.stop();
  }

  // What came of an answer that is not complete. All else is kept already, or was deleted in another tab.
  _saveRest() {
    if (this.running) this.save();
  }

  // Keeps the conversation in the browser, once there is one. Turns that failed without a word are left out.
  save(mode = this.mode) {
    const turns = this.turns[mode].filter(({ role, choices }) =>
      role !== "assistant" || choices.some(({ text, calls, reasoning }) => text || calls?.length || reasoning));
    if (!turns.length) return;
    const kept = this.kept[mode];
    kept.title = kept.named ? kept.title : titleOf(turns);
    const plain = turns.map(({ role, choices, picked, callId, name, figures }) =>
      ({ role, choices, picked, callId, name, figures }));
    if (!keep({ ...kept, turns: plain, settings: this.settings.snapshot() })) {
      announce("This browser does not keep the conversation: its storage is full or forbidden.");
    }
  }

  _changed(mode) {
    this.kept[mode].updated = Date.now();
    this.save(mode);
    if (mode === this.mode) rememberOpen(this.kept[mode].id);
    this.onKept();
  }

  _turn(data) {
    const { mode } = this;
    const turn = { picked: 0, ...data };
    turn.view = new TurnView(mode, turn, this.settings.markdown, (i) => this._pick(turn, i));
    turn.view.set(turn);
    if (turn.figures?.length) turn.view.setFigures(turn.figures);
    turn.view.setActions(this._actions(turn));
    return turn;
  }

  _actions(turn) {
    const copy = () => copyText(pickedOf(turn).text);
    if (turn.role === "tool") return { copy };
    if (turn.role === "user") return { edit: () => this._edit(turn), copy };
    const resend = () => this._again(turn);
    const code = turn.request ? () => showCode(turn.request) : null;
    if (!turn.choices.some(({ text, calls }) => text || calls?.length)) return { resend, code };
    const edit = this.mode === "chat" ? () => this._rewrite(turn) : null;
    const use = this.mode === "completion" ? () => this._continue(turn) : null;
    return { edit, resend, copy, use, code };
  }

  _pick(turn, i) {
    turn.picked = i;
    turn.view.setPicked(i);
    this.show();
    this._changed(this.mode);
    announce(`The conversation goes on with answer ${i + 1}.`);
  }

  _before(turn) {
    const turns = this.turns[this.mode];
    return turns.slice(0, turns.indexOf(turn));
  }

  _edit(turn) {
    turn.view.edit(pickedOf(turn).text, "Send", (text) =>
      this._askAgain([...this._before(turn), this._turn({ role: "user", choices: [newChoice(text)] })]));
  }

  // The model's words, put into its mouth: the next question builds on them.
  _rewrite(turn) {
    turn.view.edit(pickedOf(turn).text, "Save", (text) => {
      pickedOf(turn).text = text;
      turn.view.set(turn);
      this._changed(this.mode);
    });
  }

  _again(turn) {
    this._askAgain(this._before(turn));
  }

  _sendResults(turn, texts) {
    const { calls } = pickedOf(turn);
    const results = calls.map(({ id, name }, i) =>
      this._turn({ role: "tool", callId: id, name, choices: [newChoice(texts[i])] }));
    this._askAgain([...this._before(turn), turn, ...results]);
  }

  // Where the reader was is gone: the conversation gets the focus.
  _askAgain(turns) {
    const asked = this._ask(turns);
    if (asked) this.scroll.focus({ preventScroll: true });
    return asked;
  }

  _continue(turn) {
    const field = byId("message");
    field.value = pickedOf(this._before(turn).at(-1)).text + pickedOf(turn).text;
    field.focus();
    field.scrollTop = field.scrollHeight;
  }

  // Makes `turns`, whose last one is not the model's, the conversation, and gets its answer.
  _ask(turns) {
    const why = this.running ? ON_ITS_WAY : this.refused;
    this.hold(why);
    if (why) return false;
    const request = this._request(turns);
    if (!request) return false;
    const choices = Array.from({ length: request.body.n ?? 1 }, () => newChoice());
    const turn = this._turn({ role: "assistant", request, choices });
    turn.view.setActions({});
    this.turns[this.mode] = [...turns, turn];
    this._changed(this.mode);
    this._answer(turn, this.mode);
    return true;
  }

  // More of an answer that met its limit.
  _goOn(turn) {
    const why = this.running ? ON_ITS_WAY : this.refused;
    this.hold(why);
    const request = why ? null : this._request([...this._before(turn), turn]);
    if (!request) return;
    delete request.body.n;
    turn.choices[0].finish = null;
    turn.request = request;
    turn.view.setActions({});
    turn.view.clearEnd();
    this._answer(turn, this.mode);
    this.scroll.focus({ preventScroll: true });
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

  async _answer(turn, mode) {
    const { view, request } = turn;
    this.running = new AbortController();
    this.show();
    view.setBusy(true);
    this.follow.toEnd();
    announce("The model answers.");
    const answer = await run(request, turn.choices, this.running.signal, (part, choice) => {
      view.add(part, choice, part.index);
      this.follow.soon();
    });
    this.running = null;
    view.finish(turn.choices);
    view.setBusy(false);
    view.setActions(this._actions(turn));
    if (answer.error) this._failed(view, answer.error);
    if (!answer.error || answer.pieces) this._finished(turn, answer);
    this._ended(turn, mode);
  }

  // The reader may have gone to another conversation meanwhile: that one is not to be touched.
  _ended(turn, mode) {
    if (this.turns[mode].includes(turn)) this._changed(mode);
    this.show();
    this.follow.soon();
  }

  _finished(turn, answer) {
    const { request } = turn;
    turn.figures = figureTexts(request, answer, structured(request, answer), this.settings.severalModels);
    turn.view.setFigures(turn.figures);
    if (answer.error) return;
    const calls = pickedOf(turn).calls.length;
    const said = answer.usage?.completion_tokens ?? answer.pieces;
    if (answer.stopped) announce("Stopped.");
    else if (calls) announce(`The model calls ${calls === 1 ? "a tool" : `${calls} tools`} and waits for the result.`);
    else announce(`The answer is complete: ${said} tokens.`);
  }

  _failed(view, error) {
    view.setError(error);
    const input = this.settings.inputOf(error.param);
    if (input) this.settings.mark(input, "The server did not accept this.");
    if (error.status === 401) this.onUnauthorized();
  }
}

// Whether an answer that was to be JSON is.
function structured({ body }, answer) {
  if (!body.response_format || answer.error) return "";
  try {
    for (const { text } of answer.choices) JSON.parse(text);
    return "valid JSON";
  } catch {
    return "not complete JSON";
  }
}

export const exampleList = (examples, use) =>
  examples.map((text) => el("li", {}, el("button", { type: "button", onclick: () => use(text) }, text)));
