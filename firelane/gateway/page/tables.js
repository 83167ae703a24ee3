// Tables of the dashboard: models with their states, tenants with what they used.

import { el } from "./dom.js";
import { bytes, count, duration, figure, NOTHING } from "./format.js";

const COMES = ["pulling", "loading", "waking"];
const kind = (state) => (COMES.includes(state) ? "comes" : { ready: "ready", quarantined: "failed" }[state] ?? "");

function state(model) {
  const why = model.doing || model.reason;
  return el("span", {}, el("span", { class: `state ${kind(model.state)}` }, model.state),
    why ? el("span", { class: "doing" }, ` ${why}`) : "");
}

const MODELS = [
  ["Model", (model) => [model.name, ...model.aliases].join(", ")],
  ["State", state],
  ["For", (model) => duration(model.state_s)],
  ["Memory", (model) => (model.held_bytes ? bytes(model.held_bytes) : NOTHING)],
  ["Last used", (model) => (model.wakes ? `${duration(model.idle_s)} ago` : NOTHING)],
  ["Requests", (model) => count(model.requests)],
  ["Waiting", (model) => count(model.waiting)],
  ["Came", (model) => count(model.wakes)],
  ["Evicted", (model) => count(model.evictions)],
  ["Failed", (model) => count(model.failures)],
];

const TENANTS = [
  ["Tenant", (tenant) => tenant.name],
  ["Requests", (tenant) => count(tenant.requests)],
  ["Rejected", (tenant) => count(tenant.rejected)],
  ["Prompt tokens", (tenant) => count(tenant.prompt_tokens)],
  ["Cached", (tenant) => count(tenant.cached_tokens)],
  ["Output tokens", (tenant) => count(tenant.generated_tokens)],
  ["Cost", (tenant) => figure(tenant.cost)],
];

function table(columns, items) {
  const head = el("tr", {}, ...columns.map(([title]) => el("th", { scope: "col" }, title)));
  const rows = items.map((item) => el("tr", {}, ...columns.map(([, of], i) =>
    (i ? el("td", {}, of(item)) : el("th", { scope: "row" }, of(item))))));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
}

export const modelTable = (models) => table(MODELS, models);
export const tenantTable = (tenants) => table(TENANTS, tenants);

export const modelMemory = (node) => `${bytes(node.used_bytes)} of memory${
  node.budget_bytes ? `, of ${bytes(node.budget_bytes)}` : ""}`;
