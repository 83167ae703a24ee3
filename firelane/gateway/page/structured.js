// What an answer must look like: the editor's text to the request's fields.

const object = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`Not valid JSON: ${error.message}`);
  }
}

function schema(text) {
  const value = parseJson(text);
  if (!object(value)) throw new Error("A JSON schema is an object: { … }");
  return { response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: value } } };
}

function choices(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line);
  if (!lines.length) throw new Error("Give at least one choice, one a line.");
  return { structured_outputs: { choice: lines } };
}

function needed(text, what) {
  if (!text.trim()) throw new Error(`Give ${what}.`);
  return text;
}

const SCHEMA = {
  type: "object",
  properties: { name: { type: "string" }, arguments: { type: "array", items: { type: "string" } } },
  required: ["name", "arguments"],
  additionalProperties: false,
};

// By the select's value: what the editor is called, its first text, what helps, text -> fields of the request.
export const STRUCTURES = {
  json_object: { fields: () => ({ response_format: { type: "json_object" } }) },
  json_schema: {
    label: "Schema",
    first: JSON.stringify(SCHEMA, null, 2),
    help: "The answer is one JSON value that this schema admits.",
    fields: schema,
  },
  regex: {
    label: "Expression",
    first: "(yes|no), because [a-z ]{5,40}\\.",
    help: "The whole answer matches the expression.",
    fields: (text) => ({ structured_outputs: { regex: needed(text, "an expression") } }),
  },
  choice: {
    label: "Choices",
    first: "positive\nneutral\nnegative",
    help: "One a line. The answer is one of them.",
    fields: choices,
  },
  grammar: {
    label: "Grammar",
    first: 'root ::= "SELECT " name " FROM " name\nname ::= [a-z]+',
    help: "EBNF; the rule named root is the whole answer.",
    fields: (text) => ({ structured_outputs: { grammar: needed(text, "a grammar") } }),
  },
};

// Fields for the request. Throws Error with one line for the reader.
export const structureFields = (kind, text) => (kind ? STRUCTURES[kind].fields(text) : {});
