// A session of OpenAI's client for Node: url.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const tools = [{ type: "function", function: { name: "read_file", parameters } }];
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "key" });
const messages = [{ role: "user", content: "What does note.txt say?" }];
let message;
for (;;) {
  message = await client.chat.completions.stream({ model: "toy", messages, tools }).finalMessage();
  messages.push(message);
  if (!message.tool_calls?.length) break;
  for (const call of message.tool_calls) {
    const text = readFileSync(JSON.parse(call.function.arguments).path, "utf8");
    messages.push({ role: "tool", tool_call_id: call.id, content: text });
  }
}
console.log(message.content);
