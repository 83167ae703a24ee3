// Sampling values that hold where the reader sets none.

import { getJson } from "./api.js";

// Whose values those are that the model's author leaves open. The server knows them; see docs/api.md.
export const SAMPLING_HEADER = { "x-sampling-defaults": "llama.cpp" };

const NAMES = { repeat_penalty: "repetition_penalty" }; // Ollama's

// {name: number} as the server tells them of a model; none where it does not.
export async function samplingDefaults(model) {
  const shown = await getJson("/api/show", { body: { model } }).catch(() => ({}));
  const lines = (shown.parameters ?? "").split("\n").map((line) => line.split(/\s+/));
  const known = lines.filter(([name, value]) => name && Number.isFinite(Number(value)));
  return Object.fromEntries(known.map(([name, value]) => [NAMES[name] ?? name, Number(value)]));
}
