// A session of Vercel's AI SDK: url.
import fs from "node:fs";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "local", baseURL: `${process.argv[2]}/v1`, apiKey: "key" });
const readFile = tool({
  description: "Read a file",
  inputSchema: z.object({ path: z.string() }),
  execute: async ({ path }) => fs.readFileSync(path, "utf8"),
});
const { textStream } = streamText({
  model: provider("toy"),
  prompt: "What does note.txt say?",
  tools: { read_file: readFile },
  stopWhen: stepCountIs(5),
});
for await (const text of textStream) process.stdout.write(text);
console.log();
