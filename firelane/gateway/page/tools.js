// The tools that the model may call: the editor's text to the request's fields.

const NAME = /^[A-Za-z0-9_.-]{1,64}$/;
const object = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city now.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

export const EXAMPLE = JSON.stringify([WEATHER], null, 2);

// The tools of a text, none of a blank one. Throws Error with one line for the reader.
export function parseTools(text) {
  if (!text.trim()) return [];
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`Not valid JSON: ${error.message}`);
  }
  if (!Array.isArray(value)) throw new Error("Tools are a list: [{ … }]");
  value.forEach((tool, i) => check(tool, `Tool ${i + 1}`));
  const names = value.map((tool) => tool.function.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice) throw new Error(`Two tools are named ${twice}.`);
  return value;
}

function check(tool, which) {
  if (!object(tool) || tool.type !== "function") throw new Error(`${which} needs "type": "function".`);
  const { function: made } = tool;
  if (!object(made)) throw new Error(`${which} needs "function": { "name": … }.`);
  if (typeof made.name !== "string" || !NAME.test(made.name)) {
    throw new Error(`${which} needs a name of letters, digits, _, - and ., at most 64.`);
  }
  if (made.parameters !== undefined && !object(made.parameters)) {
    throw new Error(`${which}, ${made.name}: "parameters" is a JSON schema, an object.`);
  }
}

// choice: "", "none", "required", or the name of a tool after "=".
export function toolFields(text, choice) {
  const tools = parseTools(text);
  if (!tools.length) return {};
  if (!choice) return { tools };
  return { tools, tool_choice: choice.startsWith("=") ? { type: "function", function: { name: choice.slice(1) } } : choice };
}
