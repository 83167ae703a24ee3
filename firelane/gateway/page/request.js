// One request: made, sent, and its answer gathered as it comes.

import { call, events, fromEnvelope } from "./api.js";
import { SAMPLING_HEADER } from "./defaults.js";

const SHORT_MS = 50; // of a stream that came at once the pieces' times say nothing: the whole time counts

const MOST_CALLS = 128; // of one answer

export const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };

// The choice of a turn that the conversation goes on with.
export const pickedOf = ({ choices, picked }) => choices[picked];

// turns up to the question: [{role, choices, picked}], those of tools with {callId}. The last one alone is a
// completion's prompt. Where that is the model's, its answer goes on.
export function makeRequest(mode, turns, { fields, system }) {
  const made = { mode, path: PATHS[mode], headers: SAMPLING_HEADER };
  const goesOn = turns.at(-1).role === "assistant";
  if (mode === "completion") {
    const prompt = turns.slice(goesOn ? -2 : -1).map((turn) => pickedOf(turn).text).join("");
    return { ...made, body: { prompt, ...fields } };
  }
  const messages = turns.map(message);
  if (system.trim()) messages.unshift({ role: "system", content: system });
  const more = goesOn ? { continue_final_message: true, add_generation_prompt: false } : {};
  return { ...made, body: { messages, ...fields, ...more } };
}

function message(turn) {
  const { text, calls } = pickedOf(turn);
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.callId, content: text };
  if (!calls?.length) return { role: turn.role, content: text };
  const made = calls.map(({ id, name, arguments: args }) => ({ id, type: "function", function: { name, arguments: args } }));
  return { role: turn.role, content: text || null, tool_calls: made };
}

// {index, text, reasoning, calls, tokens, finish} of a choice of either API, whole or a piece of a stream.
// tokens: [{text, logprob, top: [{text, logprob}]}] or null; calls: pieces of tool calls, each with its index.
export function readChoice(choice) {
  const said = choice.delta ?? choice.message ?? {};
  return {
    index: choice.index ?? 0,
    text: choice.text ?? said.content ?? "",
    reasoning: said.reasoning_content ?? said.reasoning ?? "",
    calls: (said.tool_calls ?? []).map((one, i) => ({ ...one, index: one.index ?? i })),
    tokens: readLogprobs(choice.logprobs),
    finish: choice.finish_reason ?? null,
  };
}

function readLogprobs(logprobs) {
  if (!logprobs) return null;
  if (logprobs.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs: top }) => ({
      text: token,
      logprob,
      top: top.map((other) => ({ text: other.token, logprob: other.logprob })),
    }));
  }
  if (!logprobs.tokens) return null;
  return logprobs.tokens.map((text, i) => ({
    text,
    logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([other, logprob]) => ({ text: other, logprob })),
  }));
}

export const newChoice = (text = "") => ({ text, reasoning: "", calls: [], finish: null });

// Runs a request. `choices` are filled as the answer comes, onPart(part, choice) follows each piece. Never throws:
// what went wrong is in answer.error; `stopped` says that the reader did it.
export async function run(request, choices, signal, onPart) {
  const answer = { choices, usage: null, error: null, stopped: false, pieces: 0 };
  const began = performance.now();
  const take = (body) => {
    if (body.error) throw fromEnvelope(0, body);
    if (body.usage) answer.usage = body.usage;
    for (const choice of body.choices ?? []) gather(answer, readChoice(choice), began, onPart);
  };
  try {
    const response = await call(request.path, { body: request.body, headers: request.headers, signal });
    if (request.body.stream) {
      for await (const event of events(response)) take(event);
    } else {
      take(await response.json());
    }
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else answer.error = error;
  }
  answer.totalMs = performance.now() - began;
  return answer;
}

function gather(answer, part, began, onPart) {
  const choice = answer.choices[part.index];
  if (!choice) return;
  if (part.text || part.reasoning || part.calls.length) {
    answer.firstMs ??= performance.now() - began;
    answer.lastMs = performance.now() - began;
    answer.pieces += 1;
  }
  choice.text += part.text;
  choice.reasoning += part.reasoning;
  for (const piece of part.calls) addCall(choice.calls, piece);
  choice.finish = part.finish ?? choice.finish;
  onPart(part, choice);
}

// A call comes in pieces: its name first, then its arguments bit by bit.
function addCall(calls, { index, id, function: called }) {
  while (calls.length <= index && calls.length < MOST_CALLS) calls.push({ id: "", name: "", arguments: "" });
  const call = calls[index];
  if (!call) return;
  call.id ||= id ?? "";
  call.name += called?.name ?? "";
  call.arguments += called?.arguments ?? "";
}

// Figures of a finished answer: {prompt, cached, output, ttftS, rate}; null where not known. A stopped stream
// has no usage: its pieces count as tokens.
export function figures(request, answer) {
  const usage = answer.usage;
  const output = usage?.completion_tokens ?? (answer.pieces || null);
  const streamed = Boolean(request.body.stream) && answer.firstMs !== undefined;
  const streamMs = streamed ? answer.lastMs - answer.firstMs : 0;
  const timed = streamMs >= SHORT_MS;
  const spanS = (timed ? streamMs : answer.totalMs) / 1000;
  const counted = timed ? output - 1 : output;
  return {
    prompt: usage?.prompt_tokens ?? null,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? null,
    output,
    exact: usage !== null,
    ttftS: streamed ? answer.firstMs / 1000 : null,
    totalS: answer.totalMs / 1000,
    rate: counted > 0 && spanS > 0 ? counted / spanS : null,
  };
}
