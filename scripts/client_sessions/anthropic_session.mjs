// A session of Anthropic's client for Node: url.
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";

const input_schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const tools = [{ name: "read_file", description: "Read a file", input_schema }];
const client = new Anthropic({ baseURL: process.argv[2], apiKey: "key" });
const messages = [{ role: "user", content: "What does note.txt say?" }];
let message;
for (;;) {
  message = await client.messages.stream({ model: "toy", max_tokens: 500, messages, tools }).finalMessage();
  messages.push({ role: "assistant", content: message.content });
  if (message.stop_reason !== "tool_use") break;
  const uses = message.content.filter((block) => block.type === "tool_use");
  const results = uses.map((use) => ({
    type: "tool_result",
    tool_use_id: use.id,
    content: readFileSync(use.input.path, "utf8"),
  }));
  messages.push({ role: "user", content: results });
}
console.log(message.content.at(-1).text);
