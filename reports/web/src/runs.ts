// Sections about one or several runs: overview, latencies, values over time, attribution of time.

import { quantile, tpot, unpack, type Requests, type Run } from "./data.js";
import { choose, number, plot, section, fraction, table } from "./page.js";
import { kMoved } from "./transfers.js";

const kOverview: [string, string, string][] = [
  ["requests_finished", "requests finished", ""],
  ["elapsed_s", "from the first request to the end", "s"],
  ["output_tokens_per_s", "output tokens per second", ""],
  ["usd_per_million_output_tokens", "price per million output tokens", "$"],
  ["ttft_p50_ms", "TTFT median", "ms"],
  ["ttft_p99_ms", "TTFT P99", "ms"],
  ["tpot_p50_ms", "TPOT median", "ms"],
  ["tpot_p99_ms", "TPOT P99", "ms"],
  ["e2e_p99_ms", "latency P99", "ms"],
  ["session_served_p50_ms", "session without tools and thinking, median", "ms"],
  ["preemptions", "preemptions", ""],
  ["gpu_pages_held_peak", "GPU pages held, peak", ""],
  ["gpu_pages", "GPU pages", ""],
  ["fragmentation_tail", "tail fragmentation", "%"],
  ["fragmentation_group", "group fragmentation", "%"],
  ["reclaimed", "reclaimed", "%"],
  ["compressions", "compressions", ""],
  ["compression_probe_s", "probe passes", "s"],
  ["prompt_steps_compression_s", "compressions in steps with prompts", "s"],
  ["prompt_steps_s", "steps with prompts", "s"],
  ["transfer_exposed_s", "transfers exposed", "s"],
  ["transfer_hidden_s", "transfers hidden", "s"],
  ["busy", "engines busy", "%"],
];

export function overview(runs: Run[]): void {
  const into = section("overview", "Overview", "");
  const rows = kOverview
    .filter(([key]) => runs.some((run) => run.summary[key] !== undefined))
    .map(([key, label, unit]) => [
      unit && unit !== "%" ? `${label}, ${unit}` : label,
      ...runs.map((run) => said(run, key, unit === "%")),
    ]);
  rows.push(["prefix reuse at first admission", ...runs.map(reuse)]);
  rows.push(["step time from", ...runs.map((run) => fractions(run, "cost"))]);
  rows.push(["tokens from", ...runs.map((run) => fractions(run, "input"))]);
  table(into, "All runs", ["", ...runs.map((run) => run.name)], rows);
  for (const run of runs) {
    for (const note of run.notes) into.append(Object.assign(document.createElement("p"), { textContent: `${run.name}: ${note}` }));
  }
}

// Figures that a real server's files lack are 0 in a result, and empty here.
function said(run: Run, key: string, isFraction: boolean): string {
  if (run.summary["backend"] === "measured" && Number(run.summary[key]) === 0) return "–";
  return isFraction ? fraction(run.summary[key]) : number(run.summary[key]);
}

function reuse(run: Run): string {
  const all = Number(run.summary["admitted_prompt_tokens"] ?? 0);
  const found = Number(run.summary["reused_tokens_first"] ?? 0);
  return all > 0 ? `${((100 * found) / all).toFixed(1)} %` : "–";
}

// "92 % measured, 8 % roofline".
function fractions(run: Run, prefix: string): string {
  const parts = Object.entries(run.summary)
    .filter(([key, value]) => key.startsWith(`${prefix}_`) && Number(value) > 0)
    .sort((a, b) => Number(b[1]) - Number(a[1]));
  return parts.map(([key, value]) => `${(100 * Number(value)).toFixed(0)} % ${key.slice(prefix.length + 1)}`).join(", ") || "–";
}

type Measure = { name: string; unit: string; of: (requests: Requests, i: number) => number };
const kMeasures: Measure[] = [
  { name: "TTFT", unit: "s", of: (requests, i) => requests.ttft[i] ?? NaN },
  { name: "TPOT", unit: "s", of: tpot },
  { name: "Latency", unit: "s", of: (requests, i) => requests.e2e[i] ?? NaN },
];

function sorted(requests: Requests, measure: Measure): Float64Array {
  const values: number[] = [];
  for (let i = 0; i < requests.count; ++i) {
    const value = measure.of(requests, i);
    if (Number.isFinite(value)) values.push(value);
  }
  return Float64Array.from(values).sort();
}

export function latencies(runs: Run[], all: Requests[]): void {
  const into = section("latency", "Latency", "Cumulative distribution over finished requests, and percentiles over time.");
  for (const measure of kMeasures) {
    const values = all.map((requests) => sorted(requests, measure));
    plot(into, `${measure.name}: distribution`, () => ({
      xAxis: { type: "log", name: measure.unit, nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "value", min: 0, max: 1, name: "fraction of requests" },
      series: runs.map((run, r) => ({ name: run.name, type: "line", showSymbol: false, data: distribution(values[r]) })),
    }));
  }
  runs.forEach((run, r) => {
    const requests = all[r];
    if (!requests || requests.count < kOverTimeRequests) return;
    let measure = kMeasures[0];
    let redraw = () => {};
    choose(into, `${run.name}, percentiles over time of`, kMeasures.map((one) => one.name), (index) => {
      measure = kMeasures[index];
      redraw();
    });
    redraw = plot(into, `${run.name}: percentiles over time`, () => ({
      xAxis: { type: "value", name: "s", nameLocation: "middle", nameGap: 28, scale: true },
      yAxis: { type: "log", name: `${measure?.name}, s` },
      dataZoom: [{ type: "inside" }],
      series: [0.5, 0.9, 0.99].map((part) => ({
        name: `P${part * 100}`,
        type: "line",
        showSymbol: false,
        data: measure ? overTime(requests, measure, part) : [],
      })),
    }));
  });
}

// Runs with fewer requests get no percentiles over time.
const kOverTimeRequests = 100;

// At most 400 points: more cannot be distinguished.
function distribution(values: Float64Array | undefined): [number, number][] {
  if (!values || values.length === 0) return [];
  const out: [number, number][] = [];
  const steps = Math.min(values.length, 400);
  // A line needs two points: repeat the single one.
  if (values.length === 1) return [[values[0] ?? 0, 0], [values[0] ?? 0, 1]];
  for (let i = 0; i < steps; ++i) {
    const fraction = steps === 1 ? 1 : i / (steps - 1);
    const value = quantile(values, Math.max(fraction, 1 / values.length));
    if (value > 0) out.push([value, fraction]);
  }
  return out;
}

function overTime(requests: Requests, measure: Measure, part: number): [number, number][] {
  const order = Array.from({ length: requests.count }, (_, i) => i).sort((a, b) => (requests.ready[a] ?? 0) - (requests.ready[b] ?? 0));
  const parts = Math.max(1, Math.min(120, Math.floor(requests.count / 20)));
  const out: [number, number][] = [];
  for (let p = 0; p < parts; ++p) {
    const from = Math.floor((p * order.length) / parts);
    const to = Math.floor(((p + 1) * order.length) / parts);
    const here = order.slice(from, to);
    const values = Float64Array.from(here, (i) => measure.of(requests, i)).filter((one) => Number.isFinite(one)).sort();
    const value = quantile(values, part);
    if (value > 0) out.push([requests.ready[here[0] ?? 0] ?? 0, value]);
  }
  return out;
}

// Output tokens per second in equal intervals of the run; each request's tokens are spread evenly from its first token
// to its last.
function throughput(requests: Requests): [number, number][] {
  let end = 0;
  for (let i = 0; i < requests.count; ++i) end = Math.max(end, (requests.ready[i] ?? 0) + (requests.e2e[i] ?? 0));
  const width = end / kPieces || 1;
  const tokens = new Float64Array(kPieces);
  for (let i = 0; i < requests.count; ++i) {
    const from = (requests.ready[i] ?? 0) + (requests.ttft[i] ?? 0);
    const to = Math.max((requests.ready[i] ?? 0) + (requests.e2e[i] ?? 0), from + 1e-9);
    for (let p = Math.floor(from / width); p < kPieces && p * width < to; ++p) {
      const inside = Math.min(to, (p + 1) * width) - Math.max(from, p * width);
      tokens[p] = (tokens[p] ?? 0) + ((requests.output[i] ?? 0) * inside) / (to - from);
    }
  }
  return Array.from(tokens, (sum, p) => [p * width, sum / width]);
}

const kPieces = 200;

export function overRun(runs: Run[], all: Requests[]): void {
  const into = section("time", "Over time", "Means over equal intervals of the run.");
  if (all.some((requests) => requests.count > 0)) {
    plot(into, "output tokens per second, each request's spread evenly over its decode", () => ({
      xAxis: { type: "value", name: "s", nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "value", name: "tokens/s" },
      dataZoom: [{ type: "inside" }],
      series: runs.map((run, r) => {
        const requests = all[r];
        return { name: run.name, type: "line", step: "end", showSymbol: false, data: requests ? throughput(requests) : [] };
      }),
    }), 220);
  }
  const names = new Map<string, string>();
  for (const run of runs) {
    for (const series of run.series) if (!kMoved.includes(series.name)) names.set(series.name, series.unit);
  }
  for (const [name, unit] of names) {
    plot(into, name.replaceAll("_", " "), () => ({
      xAxis: { type: "value", name: "s", nameLocation: "middle", nameGap: 28 },
      yAxis: { type: "value", name: unit },
      dataZoom: [{ type: "inside" }],
      series: runs.flatMap((run) =>
        run.series
          .filter((series) => series.name === name)
          .map((series) => ({
            name: run.name,
            type: "line",
            step: "end",
            showSymbol: false,
            areaStyle: runs.length === 1 ? { opacity: 0.2 } : undefined,
            data: series.mean.map((value, i) => [i * series.width_s, value]),
          })),
      ),
    }), 220);
  }
}

const kTimes = ["queue", "transfer", "prefill", "recompute", "decode", "host"];

export function attribution(runs: Run[]): void {
  const into = section("attribution", "Where time went", "Each request's latency, split to the nanosecond; fractions of the sum over requests.");
  plot(into, "Attribution of latency", () => ({
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true },
    grid: { left: 160, right: 24, top: 40, bottom: 40 },
    xAxis: { type: "value", max: 100, name: "%" },
    yAxis: { type: "category", data: runs.map((run) => run.name), inverse: true },
    series: runs.every((run) => Number(run.summary["time_latency_s"] ?? 0) <= 0) ? [] : kTimes.map((time) => ({
      name: time,
      type: "bar",
      stack: "all",
      data: runs.map((run) => {
        const part = Number(run.summary[`time_${time}_s`] ?? 0);
        const all = Number(run.summary["time_latency_s"] ?? 0);
        return all > 0 ? (100 * part) / all : 0;
      }),
    })),
  }), 100 + 44 * runs.length);
  const rows = runs.map((run) => [
    run.name,
    ...kTimes.map((time) => number(run.summary[`time_${time}_s`])),
    number(run.summary["time_latency_s"]),
  ]);
  table(into, "Seconds, summed over requests", ["", ...kTimes, "latency"], rows);
}

export function memory(runs: Run[]): void {
  const into = section("memory", "KV memory", "Use of a GPU's memory.");
  const names = [...new Set(runs.flatMap((run) => run.memory.map((term) => term.name)))];
  if (names.length === 0) {
    into.append(Object.assign(document.createElement("p"), { textContent: "The scenario gives the number of pages, so there is no memory plan." }));
    return;
  }
  table(
    into,
    "Bytes of one GPU",
    ["", ...runs.map((run) => run.name)],
    names.map((name) => [name, ...runs.map((run) => number(run.memory.find((term) => term.name === name)?.bytes))]),
  );
}

export function unpackAll(runs: Run[]): Requests[] {
  return runs.map((run) => unpack(run));
}
