// The request that was just sent, as a command or a program. Never holds the key itself.

const OF_CLIENT = new Set([
  ...["model", "messages", "prompt", "temperature", "top_p", "max_tokens", "seed", "stop", "stream", "stream_options"],
  ...["logprobs", "top_logprobs", "presence_penalty", "frequency_penalty", "response_format"],
]);

const quoted = (text) => `'${text.replace(/'/g, `'\\''`)}'`;

export function curl({ path, body, headers }, origin, withKey) {
  const lines = [`curl ${body.stream ? "-N " : ""}${origin}${path}`, "-H 'Content-Type: application/json'"];
  for (const [name, value] of Object.entries(headers ?? {})) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (withKey) lines.push('-H "Authorization: Bearer $OPENAI_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}

// A JSON value as Python writes it.
export function python(value, indent = "") {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => python(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const flat = open + items.join(", ") + close;
  if (flat.length + indent.length < 80 && !flat.includes("\n")) return flat;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

export function pythonProgram({ mode, body, headers }, origin, withKey) {
  const known = Object.entries(body).filter(([name]) => OF_CLIENT.has(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OF_CLIENT.has(name)));
  const fields = known.map(([name, value]) => `    ${name}=${python(value, "    ")},`);
  if (headers) fields.push(`    extra_headers=${python(headers, "    ")},`);
  if (Object.keys(extra).length) fields.push(`    extra_body=${python(extra, "    ")},`);
  const client = withKey
    ? `client = OpenAI(base_url="${origin}/v1")  # reads the key from OPENAI_API_KEY`
    : `client = OpenAI(base_url="${origin}/v1", api_key="none")`;
  const what = mode === "chat" ? "chat.completions" : "completions";
  const text = (owner) => (mode === "chat" ? `choices[0].${owner}.content` : "choices[0].text");
  const end = body.stream
    ? `for event in answer:\n    if event.choices:\n        print(event.${text("delta")} or "", end="", flush=True)`
    : `print(answer.${text("message")})`;
  return [
    "from openai import OpenAI",
    "",
    client,
    `answer = client.${what}.create(`,
    ...fields,
    ")",
    end,
    "",
  ].join("\n");
}
