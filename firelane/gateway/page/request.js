// One request: made, sent, and its answer gathered as it comes.

import { call, events, fromEnvelope } from "./api.js";

const SHORT_MS = 50; // of a stream that came at once the pieces' times say nothing: the whole time counts

export const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };

// turns: [{role, text}] up to the question. The last one alone is a completion's prompt.
export function makeRequest(mode, turns, { fields, system }) {
  if (mode === "completion") return { mode, path: PATHS.completion, body: { prompt: turns.at(-1).text, ...fields } };
  const messages = turns.map(({ role, text }) => ({ role, content: text }));
  if (system.trim()) messages.unshift({ role: "system", content: system });
  return { mode, path: PATHS.chat, body: { messages, ...fields } };
}

// {text, reasoning, tokens, finish} of a choice of either API, whole or a piece of a stream.
// tokens: [{text, logprob, top: [{text, logprob}]}] or null.
export function readChoice(choice) {
  const message = choice.delta ?? choice.message ?? {};
  const calls = (message.tool_calls ?? []).map((one) => `${one.function?.name ?? ""}${one.function?.arguments ?? ""}`);
  return {
    text: choice.text ?? message.content ?? "",
    reasoning: message.reasoning_content ?? message.reasoning ?? "",
    calls: calls.join(""),
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

// Runs a request. `answer` is filled as it comes, onPart(part, answer) follows each piece. Never throws: what
// went wrong is in answer.error; `stopped` says that the reader did it.
export async function run(request, signal, onPart) {
  const answer = { text: "", reasoning: "", calls: "", finish: null, usage: null, error: null, stopped: false, pieces: 0 };
  const began = performance.now();
  const take = (body) => {
    if (body.error) throw fromEnvelope(0, body);
    if (body.usage) answer.usage = body.usage;
    for (const choice of body.choices ?? []) gather(answer, readChoice(choice), began, onPart);
  };
  try {
    const response = await call(request.path, { body: request.body, signal });
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
  if (part.text || part.reasoning || part.calls) {
    answer.firstMs ??= performance.now() - began;
    answer.lastMs = performance.now() - began;
    answer.pieces += 1;
  }
  answer.text += part.text;
  answer.reasoning += part.reasoning;
  answer.calls += part.calls;
  answer.finish = part.finish ?? answer.finish;
  onPart(part, answer);
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
