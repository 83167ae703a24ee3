// A session of the tool runner of Anthropic's client for Node: url.
import { readFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const readFile = betaTool({
  name: "read_file",
  description: "Read a file",
  inputSchema: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  run: ({ path }) => readFileSync(path, "utf8"),
});
const client = new Anthropic({ baseURL: process.argv[2], apiKey: "key" });
const message = await client.beta.messages.toolRunner({
  model: "toy",
  max_tokens: 500,
  tools: [readFile],
  messages: [{ role: "user", content: "What does note.txt say?" }],
});
console.log(message.content.at(-1).text);
