// Conversations kept in this browser, each under a key of its own. Nothing of them leaves it.

const PREFIX = "firelane.conversation.";
const OPEN = "firelane.open"; // of the tab: what it showed last
const TITLE_LENGTH = 60;

// A conversation: {id, mode, title, named, updated, settings, turns}; turns are kept without their views.
export function newConversation(mode) {
  const random = crypto.getRandomValues(new Uint32Array(3));
  const id = [...random].map((part) => part.toString(36)).join("");
  return { id, mode, title: "", named: false, updated: Date.now(), settings: {}, turns: [] };
}

// What an unnamed conversation is called: its first line.
export function titleOf(turns) {
  const text = turns[0]?.choices[0].text.trim().replace(/\s+/g, " ") ?? "";
  return text.length > TITLE_LENGTH ? `${text.slice(0, TITLE_LENGTH - 1)}…` : text || "Untitled";
}

const choiceFits = (choice) => typeof choice?.text === "string" && (choice.calls === undefined || Array.isArray(choice.calls));
const turnFits = ({ role, choices, picked }) =>
  ["user", "assistant", "tool"].includes(role) && Array.isArray(choices) && choices.every(choiceFits) && picked in choices;

// Whether what lies in storage is a conversation: another version, or a hand, may have written it.
function fits(value) {
  return typeof value?.id === "string" && typeof value.title === "string" && Array.isArray(value.turns)
    && (value.mode === "chat" || value.mode === "completion") && value.turns.every(turnFits);
}

function parsed(text) {
  try {
    const value = JSON.parse(text);
    return fits(value) ? value : null;
  } catch {
    return null;
  }
}

// All that are kept, the last changed first. Without storage there are none.
export function keptConversations() {
  try {
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
    const found = keys.map((key) => parsed(localStorage.getItem(key))).filter((value) => value);
    return found.sort((a, b) => b.updated - a.updated);
  } catch {
    return [];
  }
}

export function keptConversation(id) {
  try {
    return parsed(localStorage.getItem(PREFIX + id));
  } catch {
    return null;
  }
}

// False when the browser does not take it: storage is full, or forbidden.
export function keep(conversation) {
  try {
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function forget(id) {
  try {
    localStorage.removeItem(PREFIX + id);
  } catch { /* then there was nothing to forget */ }
}

// What this tab showed last, so that it shows it again after a reload.
export function lastOpen() {
  try {
    return sessionStorage.getItem(OPEN) ?? "";
  } catch {
    return "";
  }
}

export function rememberOpen(id) {
  try {
    sessionStorage.setItem(OPEN, id);
  } catch { /* a reload starts anew */ }
}

// Calls `changed` when another tab has kept or deleted a conversation.
export function onOtherTabs(changed) {
  window.addEventListener("storage", ({ key }) => {
    if (key === null || key.startsWith(PREFIX)) changed();
  });
}
