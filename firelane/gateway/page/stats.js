// Asks /stats once a second while the page can be seen, and makes figures of the counters.

import { ApiError, getJson, keyHeaders, NO_ANSWER } from "./api.js";

export const EVERY_MS = 1000;
export const KEEP_S = 300; // what the charts show
const WINDOW_S = 60; // of percentiles and hit rates

// The q-quantile of a histogram, linear within a bucket as Prometheus has it; null of no observations.
export function quantile(q, boundsS, counts) {
  const total = counts.reduce((sum, n) => sum + n, 0);
  if (!total) return null;
  let below = 0;
  for (let i = 0; i < boundsS.length; i += 1) {
    if (below + counts[i] >= q * total) {
      const from = i ? boundsS[i - 1] : 0;
      return from + (boundsS[i] - from) * ((q * total - below) / counts[i]);
    }
    below += counts[i];
  }
  return boundsS.at(-1);
}

// {p50, p90, p99} of what was observed between two answers; of all when `before` is null.
export function spread(now, before) {
  const counts = now.counts.map((n, i) => n - (before ? before.counts[i] : 0));
  const of = (q) => quantile(q, now.bounds_s, counts);
  return { p50: of(0.5), p90: of(0.9), p99: of(0.99) };
}

const UNKNOWN = { p50: null, p90: null, p99: null };
const part = (some, all) => (all ? some / all : null);

// The figures of one answer. last: the answer before it; before: the one a minute ago. Both may be null.
export function derive(now, last, before) {
  const passedS = last ? now.now_s - last.now_s : 0;
  const rate = (name) => (passedS > 0 ? (now.tokens[name] - last.tokens[name]) / passedS : null);
  const cache = now.prefix_cache;
  const asked = before ? cache.queries - before.prefix_cache.queries : 0;
  return {
    timeS: now.now_s,
    running: now.requests.running,
    waiting: now.requests.waiting,
    outputRate: rate("generated"),
    promptRate: rate("prompt"),
    ttft: before ? spread(now.ttft, before.ttft) : UNKNOWN,
    itl: before ? spread(now.itl, before.itl) : UNKNOWN,
    ttftEver: spread(now.ttft, null),
    itlEver: spread(now.itl, null),
    batch: part(now.requests.running, now.engine.max_num_seqs),
    kv: part(now.kv_blocks.used, now.kv_blocks.total),
    hitRate: asked ? (cache.hits - before.prefix_cache.hits) / asked : null,
    hitRateEver: part(cache.hits, cache.queries),
  };
}

// The answers and figures of the last KEEP_S seconds, oldest first.
export class History {
  raw = [];
  figures = [];

  add(now) {
    const last = this.raw.at(-1) ?? null;
    if (last && (last.started !== now.started || last.model !== now.model || now.now_s < last.now_s)) {
      this.raw = []; // another server or model: its counters have nothing to do with the old ones
      this.figures = [];
      this.add(now);
      return;
    }
    const before = this.raw.findLast((old) => now.now_s - old.now_s >= WINDOW_S) ?? this.raw[0] ?? null;
    this.figures.push(derive(now, last, before));
    this.raw.push(now);
    while (now.now_s - this.raw[0].now_s > KEEP_S) {
      this.raw.shift();
      this.figures.shift();
    }
  }
}

// Tells `watch` about the server: watch.stats(answer, history); where the key may not read /stats,
// watch.health({status, reason}, why), why being the error; watch.silent(error) when no answer comes.
export class Poll {
  constructor(watch) {
    Object.assign(this, { watch, history: new History(), timer: null, asking: false, denied: null, query: "" });
    document.addEventListener("visibilitychange", () => this.wake());
  }

  // The key is another one: what it may read is to be found out.
  renew() {
    this.denied = null;
    this.wake();
  }

  // The model to ask about; "" for the first.
  choose(model) {
    const query = model && `?model=${encodeURIComponent(model)}`;
    if (query === this.query) return;
    this.query = query;
    this.wake();
  }

  // Ask now, and from now on, while the page can be seen.
  wake() {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible" && !this.asking) this._run();
  }

  async _run() {
    this.asking = true;
    const began = performance.now();
    try {
      await (this.denied ? this._health() : this._stats());
    } catch (error) {
      this.watch.silent(error);
    }
    this.asking = false;
    if (document.visibilityState !== "visible") return;
    this.timer = setTimeout(() => this._run(), Math.max(0, EVERY_MS - (performance.now() - began)));
  }

  async _stats() {
    try {
      const { query } = this;
      const answer = await getJson(`/stats${query}`);
      if (query !== this.query) return; // another model was chosen meanwhile
      this.history.add(answer);
      this.watch.stats(answer, this.history);
    } catch (error) {
      if (error.status !== 401 && error.status !== 403) throw error;
      this.denied = error;
      await this._health();
    }
  }

  async _health() {
    const query = this.denied?.status === 401 ? "" : this.query; // of one model who has a key may ask
    const response = await fetch(`/health${query}`, { headers: keyHeaders() }).catch(() => null);
    const answer = response && (await response.json().catch(() => null));
    if (!answer) throw new ApiError(0, NO_ANSWER);
    if (this.denied) this.watch.health(answer, this.denied);
  }
}
