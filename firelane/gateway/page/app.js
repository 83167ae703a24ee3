// The page: its views, the state of the server, the message field.

import { getJson } from "./api.js";
import { Conversation, exampleList } from "./conversation.js";
import { Dashboard } from "./dashboard.js";
import { samplingDefaults } from "./defaults.js";
import { askForKey, setUpDialogs } from "./dialogs.js";
import { byId, setText } from "./dom.js";
import { Library } from "./library.js";
import { Loading } from "./loading.js";
import { Panels } from "./panels.js";
import { Settings } from "./settings.js";
import { Poll } from "./stats.js";
import { keptConversation, lastOpen } from "./store.js";

const STATES = { ready: "Ready", loading: "Loading", draining: "Shutting down", down: "Engine down" };
const EMPTY = {
  chat: "Ask something, or start with one of these. Settings are sent with each message as they stand.",
  completion: "Give the beginning of a text; the model goes on from there.",
};
const EXAMPLES = {
  chat: ["Why is the sky blue? Answer in two sentences.", "Write a Python function that tells whether a word is a palindrome."],
  completion: ["Once upon a time,", "def fibonacci(n):\n"],
};
// Of the model that comes with the program, which knows Python's standard library and nothing else.
const EMBEDDED = "firelane-embedded";
const EMBEDDED_EXAMPLES = {
  chat: [
    "Write a Python function `is_absolute(path)`: Return True if path is absolute.",
    "Write a Python function `read_lines(path)`: Read a file and return its lines.",
  ],
  completion: ["def fibonacci(n):\n", 'class Queue:\n    """'],
};

const settings = new Settings(byId("settings"));
const conversation = new Conversation(settings, askForKey);
const dashboard = new Dashboard();
const library = new Library(conversation);
const loadingTime = new Loading();
const panels = new Panels({ "open-settings": "settings", "open-library": "library" });
const message = byId("message");
let models = "";
let mode = "";
let shown = ""; // mode and model that the examples are for
let described = ""; // the model whose defaults the settings show
let waiting = false; // the message is to be sent once the model is ready

function showView() {
  const view = location.hash === "#dashboard" ? "dashboard" : "playground";
  for (const link of document.querySelectorAll("[data-view]")) {
    const here = link.dataset.view === view;
    byId(`${link.dataset.view}-view`).hidden = !here;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (location.hash === "#message") message.focus(); // the skip link, from another view
  document.title = view === "dashboard" ? "Firelane dashboard" : "Firelane playground";
}

// Draws nothing again while the mode stays: a button must not go away between press and release.
function showMode() {
  showExamples();
  if (mode === settings.mode) return;
  mode = settings.mode;
  library.draw();
  setText(byId("message-label"), mode === "chat" ? "Message" : "Prompt");
  setText(byId("empty-text"), EMPTY[mode]);
}

function showExamples() {
  const model = byId("model").value;
  if (shown === `${settings.mode} ${model}`) return;
  shown = `${settings.mode} ${model}`;
  const examples = (model === EMBEDDED ? EMBEDDED_EXAMPLES : EXAMPLES)[settings.mode];
  byId("examples").replaceChildren(...exampleList(examples, (text) => {
    message.value = text;
    send();
  }));
}

// Empty settings say what holds. A model's files may come with it: it is asked once it serves.
async function showDefaults() {
  const model = byId("model").value;
  if (!model || model === described) return;
  described = model;
  const values = await samplingDefaults(model);
  if (model === described) settings.setDefaults(values);
}

function send() {
  const text = settings.mode === "chat" ? message.value.trim() : message.value;
  if (text && conversation.refused) wait(true);
  else if (text && conversation.send(text)) message.value = "";
}

// While the model loads, a message waits in its field, and may still be changed.
function wait(now) {
  waiting = now;
  setText(byId("send"), now ? "Waiting" : "Send");
  conversation.hold(now ? "Sent as soon as the model is ready. Escape keeps it." : "");
}

function showState(state, text) {
  byId("state").dataset.state = state;
  setText(byId("state"), text);
}

// What stands above the page while no answer can be had. loading: {stage, done, total, unit} or null.
function showNotice(text, loading = null) {
  byId("notice").hidden = !text;
  setText(byId("notice-text"), text);
  const bar = byId("notice-bar");
  bar.hidden = !loading?.total;
  if (loading?.total) {
    const part = Math.min(1, loading.done / loading.total);
    bar.setAttribute("aria-valuenow", String(Math.round(part * 100)));
    bar.firstElementChild.style.inlineSize = `${part * 100}%`;
  }
}

// What the state of the engine means for the reader. reason: of the server, in words.
function showEngine(state, reason, loading = null) {
  showState(state, STATES[state] ?? state);
  const time = state === "loading" ? loadingTime.say(loading, performance.now() / 1000) : loadingTime.reset();
  const notices = {
    loading: `The model is loading: ${reason}.${time} You can already write: what you send waits until it is ready.`,
    draining: "The server is shutting down.",
    down: `The engine does not run: ${reason}`,
  };
  showNotice(notices[state] ?? "", loading);
  refuse(state === "loading" ? "The model is still loading." : "");
  if (waiting && state === "ready") {
    wait(false);
    send();
  }
}

// Asks for the models where they are not known, or no longer those that `served` names.
async function showModels(served = "") {
  if (models && served === models) return;
  models = served || "asked";
  const { data } = await getJson("/v1/models").catch(() => ({ data: null }));
  if (!data) {
    models = ""; // once more with the next answer
    return;
  }
  settings.setModels(data.map(({ id }) => id));
  showExamples();
  poll.choose(byId("model").value);
}

function refuse(why) {
  conversation.refused = why;
  if (why) byId("send").setAttribute("aria-disabled", "true");
  else byId("send").removeAttribute("aria-disabled");
}

const watch = {
  stats(stats, history) {
    showEngine(stats.engine.state, stats.engine.reason, stats.engine.loading);
    showModels(stats.models.join("\n"));
    if (stats.engine.state === "ready") showDefaults();
    dashboard.update(stats, history);
  },

  health({ status, reason }, why) {
    showEngine(status, reason);
    if (status === "ready" && why.status !== 401) showDefaults();
    dashboard.refuse(why.status === 401
      ? "The dashboard needs an API key: that of a tenant with admin rights."
      : "The dashboard needs the key of a tenant with admin rights.");
    if (why.status === 401) {
      showState("unknown", "Key needed");
      showNotice("This server asks for an API key: enter yours under “API key”.");
    } else if (!models) {
      showModels();
    }
  },

  silent(error) {
    refuse("");
    showState("down", "No answer");
    showNotice(error.message);
  },
};

const poll = new Poll(watch);
setUpDialogs(() => {
  models = "";
  poll.renew();
});
window.addEventListener("hashchange", showView);
byId("settings").addEventListener("change", showMode);
byId("model").addEventListener("change", () => {
  poll.choose(byId("model").value);
  showExamples();
});
byId("settings").addEventListener("reset", () => setTimeout(showMode));
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  conversation.stop();
  message.focus();
});
message.addEventListener("input", () => {
  if (!waiting) conversation.hold("");
});
message.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (panels.close()) return;
  if (waiting) wait(false);
  conversation.stop();
});

conversation.onKept = () => library.draw();
const before = keptConversation(lastOpen());
if (before) conversation.open(before);
showView();
showMode();
poll.wake();
