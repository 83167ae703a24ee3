// A session of Ollama's client for JavaScript: url.
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";

const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const tools = [{ type: "function", function: { name: "read_file", description: "Read a file", parameters } }];
const client = new Ollama({ host: process.argv[2] });
const messages = [{ role: "user", content: "What does note.txt say?" }];
let content;
for (;;) {
  content = "";
  const tool_calls = [];
  for await (const piece of await client.chat({ model: "toy", messages, tools, stream: true })) {
    content += piece.message.content;
    tool_calls.push(...(piece.message.tool_calls ?? []));
  }
  messages.push({ role: "assistant", content, tool_calls });
  if (!tool_calls.length) break;
  for (const call of tool_calls) {
    const text = readFileSync(call.function.arguments.path, "utf8");
    messages.push({ role: "tool", tool_name: call.function.name, content: text });
  }
}
console.log(content);
