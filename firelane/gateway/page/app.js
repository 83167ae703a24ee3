// The page: its views, the state of the server, the message field.

import { getJson } from "./api.js";
import { Conversation, exampleList } from "./conversation.js";
import { Dashboard } from "./dashboard.js";
import { askForKey, setUpDialogs } from "./dialogs.js";
import { byId, setText } from "./dom.js";
import { Settings } from "./settings.js";
import { Poll } from "./stats.js";

const STATES = { ready: "Ready", starting: "Loading", draining: "Shutting down", down: "Engine down" };
const EMPTY = {
  chat: "Ask something, or start with one of these. Settings are sent with each message as they stand.",
  completion: "Give the beginning of a text; the model goes on from there.",
};
const EXAMPLES = {
  chat: [
    "Write a Python function `is_absolute(path)`: Return True if path is absolute.",
    "Write a Python function `read_lines(path)`: Read a file and return its lines.",
  ],
  completion: ["def fibonacci(n):\n", 'class Queue:\n    """'],
};

const settings = new Settings(byId("settings"));
const conversation = new Conversation(settings, askForKey);
const dashboard = new Dashboard();
const message = byId("message");
let models = "";
let mode = "";

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
  if (mode === settings.mode) return;
  mode = settings.mode;
  setText(byId("message-label"), mode === "chat" ? "Message" : "Prompt");
  setText(byId("empty-text"), EMPTY[mode]);
  byId("examples").replaceChildren(...exampleList(EXAMPLES[mode], (text) => {
    message.value = text;
    send();
  }));
}

function send() {
  const text = settings.mode === "chat" ? message.value.trim() : message.value;
  if (text && conversation.send(text)) message.value = "";
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
  const notices = {
    starting: `The model is loading: ${reason}. You can already write; sending works once it is ready.`,
    draining: "The server is shutting down.",
    down: `The engine does not run: ${reason}`,
  };
  showNotice(notices[state] ?? "", loading);
  refuse(state === "loading" ? "The model is still loading." : "");
}

function showModels(names) {
  if (names.join("\n") === models) return;
  models = names.join("\n");
  settings.setModels(names);
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
    showModels(stats.models);
    dashboard.update(stats, history);
  },

  health({ status, reason }, why) {
    showEngine(status, reason);
    dashboard.refuse(why.status === 401
      ? "The dashboard needs an API key: that of a tenant with admin rights."
      : "The dashboard needs the key of a tenant with admin rights.");
    if (why.status === 401) {
      showState("unknown", "Key needed");
      showNotice("This server asks for an API key: enter yours under “API key”.");
    } else if (!models) {
      getJson("/v1/models").then(({ data }) => showModels(data.map(({ id }) => id)), watch.silent);
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
byId("model").addEventListener("change", () => poll.choose(byId("model").value));
byId("settings").addEventListener("reset", () => setTimeout(showMode));
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => {
  conversation.stop();
  message.focus();
});
byId("clear").addEventListener("click", () => {
  conversation.clear();
  message.focus();
});
message.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  conversation.stop();
});
byId("open-settings").addEventListener("click", () => {
  const open = byId("settings").classList.toggle("open");
  byId("open-settings").setAttribute("aria-expanded", String(open));
  if (open) byId("settings").querySelector("input:checked").focus();
});
showView();
showMode();
poll.wake();
