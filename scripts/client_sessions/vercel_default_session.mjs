// Two turns of Vercel's AI SDK with its default provider, whose second turn refers to items of the first: url.
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const provider = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "key" });
const tools = {
  read_file: tool({
    description: "Read a file",
    inputSchema: z.object({ path: z.string() }),
    execute: async ({ path }) => readFileSync(path, "utf8"),
  }),
};
const options = { openai: { reasoningEffort: "low" } };
const asked = { model: provider("toy"), tools, stopWhen: stepCountIs(4), providerOptions: options };
const messages = [{ role: "user", content: "What does note.txt say?" }];
const first = await generateText({ ...asked, messages });
messages.push(...first.response.messages, { role: "user", content: "Say it again" });
const second = await generateText({ ...asked, messages });
console.log(`first: ${first.text}\nsecond: ${second.text}`);
