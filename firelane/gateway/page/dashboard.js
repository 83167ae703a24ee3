// The live figures: the strip above the playground, the charts, the tables.

import { Chart } from "./chart.js";
import { byId, el, setText } from "./dom.js";
import { bytes, count, duration, figure, NOTHING, percent, seconds } from "./format.js";
import { modelMemory, modelTable, tenantTable } from "./tables.js";

// Of the last minute where anything happened in it, else since the start.
const recent = (one, name) => (one[name].p50 === null ? one[`${name}Ever`] : one[name]);
const basis = (value) => (value === null ? "since the start" : "last minute");
const median = (one, name) => [seconds(recent(one, name).p50), `median · ${basis(one[name].p50)}`];
const hits = (one) => one.hitRate ?? one.hitRateEver;
const spreadLines = (name) => [50, 90, 99].map((q) => ({ name: `p${q}`, of: (one) => one[name][`p${q}`] }));

const CHARTS = [
  {
    title: "Tokens per second",
    lines: [{ name: "Output", of: (one) => one.outputRate }, { name: "Prompt", of: (one) => one.promptRate }],
    format: figure,
    headline: (one) => [figure(one.outputRate), "output tokens/s"],
  },
  {
    title: "Requests",
    lines: [{ name: "Running", of: (one) => one.running }, { name: "Waiting", of: (one) => one.waiting }],
    format: figure,
    whole: true,
    headline: (one) => [count(one.running), `running · ${count(one.waiting)} waiting`],
  },
  {
    title: "Occupancy",
    lines: [{ name: "KV cache", of: (one) => one.kv }, { name: "Batch", of: (one) => one.batch }],
    format: percent,
    top: 1,
    headline: (one) => [percent(one.kv), `of the KV cache · ${percent(one.batch)} of the batch`],
  },
  {
    title: "Time to first token",
    lines: spreadLines("ttft"),
    format: seconds,
    headline: (one) => median(one, "ttft"),
  },
  {
    title: "Time between tokens",
    lines: spreadLines("itl"),
    format: seconds,
    headline: (one) => median(one, "itl"),
  },
  {
    title: "Prefix cache",
    lines: [{ name: "Hit rate", of: (one) => one.hitRate }],
    format: percent,
    top: 1,
    headline: (one) => [percent(hits(one)), `of prompt tokens · ${basis(one.hitRate)}`],
  },
];

const STRIP = [
  ["Running", (one) => count(one.running)],
  ["Waiting", (one) => count(one.waiting)],
  ["Output", (one) => (one.outputRate === null ? NOTHING : `${figure(one.outputRate)} tok/s`)],
  ["First token", (one) => seconds(recent(one, "ttft").p50)],
  ["Between tokens", (one) => seconds(recent(one, "itl").p50)],
  ["KV cache", (one) => percent(one.kv)],
  ["Prefix hits", (one) => percent(hits(one))],
];

// [[term, text]] into a <dl>, which keeps its nodes from one update to the next.
function facts(list, entries) {
  if (list.children.length !== entries.length) {
    list.replaceChildren(...entries.map(() => el("div", {}, el("dt"), el("dd"))));
  }
  entries.forEach(([term, text], i) => {
    setText(list.children[i].firstChild, term);
    setText(list.children[i].lastChild, text);
  });
}

const pairs = (counts) => Object.entries(counts).sort().map(([name, n]) => `${name}: ${count(n)}`).join(", ") || NOTHING;

const drafted = ({ tokens, accepted }) => `${count(accepted)}${tokens ? ` (${percent(accepted / tokens)})` : ""}`;

function totals(stats) {
  return [
    ["Output tokens", count(stats.tokens.generated)],
    ["Prompt tokens", count(stats.tokens.prompt)],
    ["From the prefix cache", count(stats.prefix_cache.hits)],
    ["Sequences by end", pairs(stats.requests.ended)],
    ["Answers by HTTP status", pairs(stats.requests.answers)],
    ["Drafted tokens", count(stats.drafts.tokens)],
    ["Drafted and right", drafted(stats.drafts)],
    ["Preemptions", count(stats.preemptions)],
    ["Steps", count(stats.steps)],
  ];
}

function server(stats) {
  const { engine } = stats;
  return [
    ["Model", stats.model],
    ["Engine", engine.state],
    ["Up for", duration(stats.uptime_s)],
    ["Longest sequence", engine.max_model_len ? `${count(engine.max_model_len)} tokens` : NOTHING],
    ["Batch", engine.max_num_seqs ? `${count(engine.max_num_seqs)} sequences` : NOTHING],
    ["Weights", bytes(engine.weights_bytes)],
    ["KV cache", stats.kv_blocks.total
      ? `${bytes(engine.kv_bytes)}, ${count(stats.kv_blocks.total)} blocks of ${count(engine.block_tokens)} tokens`
      : bytes(engine.kv_bytes)],
    ["Loaded in", seconds(engine.load_s)],
    ["Firelane", stats.version],
  ];
}

export class Dashboard {
  constructor() {
    this.charts = CHARTS.map((chart) => new Chart(chart));
    byId("charts").append(...this.charts.map((chart) => chart.node));
    this.tenants = null;
  }

  // Nothing can be shown, and why.
  refuse(why) {
    setText(byId("refused"), why);
    byId("refused").hidden = false;
    byId("figures").hidden = true;
    byId("strip").hidden = true;
  }

  update(stats, history) {
    byId("refused").hidden = true;
    byId("figures").hidden = false;
    byId("strip").hidden = false;
    const now = history.figures.at(-1);
    facts(byId("strip"), STRIP.map(([name, of]) => [name, of(now)]));
    for (const chart of this.charts) chart.update(history.figures);
    facts(byId("totals"), totals(stats));
    facts(byId("server"), server(stats));
    const tenants = JSON.stringify(stats.tenants);
    if (tenants !== this.tenants) this._tenants(stats.tenants);
    this.tenants = tenants;
    this._models(stats.node);
  }

  _models(node) {
    byId("models-panel").hidden = !node.models.length;
    setText(byId("models-memory"), modelMemory(node));
    byId("models").replaceChildren(modelTable(node.models));
  }

  _tenants(tenants) {
    byId("tenants").replaceChildren(tenants.length
      ? tenantTable(tenants)
      : el("p", { class: "help" }, "No request has ended yet."));
  }
}
