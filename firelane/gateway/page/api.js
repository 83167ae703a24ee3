// The server's HTTP API: the key, the error envelope, server-sent events.

export const NO_ANSWER = "The server does not answer. It may have been stopped, or the network is down.";
const KEY = "firelane.key";

function keptKey() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage is forbidden
  }
}

let key = keptKey();

export const apiKey = () => key;
export const keyIsKept = () => keptKey() !== "";

// Stays in memory, for as long as the page is open, and in the browser only where the reader wants that.
export function setApiKey(value, remember) {
  key = value;
  try {
    if (value && remember) localStorage.setItem(KEY, value);
    else localStorage.removeItem(KEY);
  } catch { /* kept in memory */ }
}

// status 0: no answer came. The other fields are those of the envelope, where there was one.
export class ApiError extends Error {
  constructor(status, message, { type = "", param = null, code = null, requestId = "", retryAfter = "" } = {}) {
    super(message);
    Object.assign(this, { status, type, param, code, requestId, retryAfter });
  }
}

// An error event or the body of an error answer.
export function fromEnvelope(status, body, extra = {}) {
  const error = body?.error ?? {};
  const message = typeof error.message === "string" ? error.message : `the server answered ${status}`;
  return new ApiError(status, message, { type: error.type, param: error.param, code: error.code, ...extra });
}

// What says who asks.
export const keyHeaders = () => (apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {});

// A Response with a good status. Throws ApiError, and AbortError after an abort.
export async function call(path, { body, signal, headers: more = {} } = {}) {
  const headers = { ...more, ...keyHeaders() };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, NO_ANSWER);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw fromEnvelope(response.status, answer, {
    requestId: response.headers.get("x-request-id") ?? "",
    retryAfter: response.headers.get("retry-after") ?? "",
  });
}

export const getJson = async (path, options) => (await call(path, options)).json();

// The JSON events of a stream (WHATWG HTML, 9.2), until [DONE]. Throws ApiError when it breaks off.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, "The answer broke off: the connection was lost.");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
