// Sections about one or several runs: table, latencies, values over time, attribution of time.

import { quantile, tpot, unpack, type Report, type Requests, type Run } from "./data.js";
import { figure, kGroups, type Row } from "./figures.js";
import { term, unitOf } from "./glossary.js";
import { choose, columns, element, number, plot, section, table } from "./page.js";
import { kZoom, valueAxis, type TimeAxis } from "./time_axis.js";
import { kMoved } from "./transfers.js";
import { change, scaled, scaleOf } from "./units.js";

// A row of figures in one unit; undefined if no run has a value other than 0.
function rowOf(runs: Run[], { label, name }: Row): (string | Node)[] | undefined {
  const values = runs.map((run) => figure(run, name));
  if (!values.some((value) => value !== undefined && value !== 0)) return undefined;
  const scale = scaleOf(unitOf(name), Math.max(...values.map((value) => Math.abs(value ?? 0))));
  const head = element("span");
  head.append(term(label, name));
  if (scale.unit && !implied(label, scale.unit)) head.append(element("span", ` ${scale.unit}`, "unit"));
  const cells = values.map((value) => scaled(value, scale));
  return [head, ...cells, ...(runs.length === 2 ? [change(values[1], values[0])] : [])];
}

// Units that the label already names.
function implied(label: string, unit: string): boolean {
  const words = unit.replace("tokens/s", "tokens per second").replace("1/s", "per second");
  return words.length > 2 && label.includes(words);
}

// The metrics in groups; rows and groups without a value are left out.
export function metrics(runs: Run[]): void {
  const into = section("metrics", "Metrics", "Rows that are 0 in all runs are left out. Point at a name for its definition.");
  const grid = element("div", "", runs.length > 3 ? "groups single" : runs.length > 1 ? "groups double" : "groups");
  into.append(grid);
  const head = runs.length === 1 ? [] : ["", ...runs.map((run) => run.name), ...(runs.length === 2 ? ["change"] : [])];
  for (const group of kGroups) {
    const rows = group.rows.map((row) => rowOf(runs, row)).filter((row) => row !== undefined);
    if (rows.length > 0) table(grid, group.title, head, rows);
  }
  const evidence = (["cost", "input"] as const).map((prefix) => [
    prefix === "cost" ? "step times from" : "token counts from", ...runs.map((run) => fractions(run, prefix)), ...(runs.length === 2 ? [""] : []),
  ]).filter(([, ...cells]) => cells.some((cell) => cell !== "–" && cell !== ""));
  if (evidence.length > 0) table(grid, "Evidence", head, evidence);
}

// "92 % measured, 8 % roofline".
function fractions(run: Run, prefix: string): string {
  const parts = Object.entries(run.summary)
    .filter(([key, value]) => key.startsWith(`${prefix}_`) && Number(value) > 0)
    .sort((a, b) => Number(b[1]) - Number(a[1]));
  return parts.map(([key, value]) => `${(100 * Number(value)).toFixed(0)} % ${key.slice(prefix.length + 1)}`).join(", ") || "–";
}

type Measure = { name: string; metric: string; unit: string; of: (requests: Requests, i: number) => number };
const kMeasures: Measure[] = [
  { name: "TTFT", metric: "ttft", unit: "s", of: (requests, i) => requests.ttft[i] ?? NaN },
  { name: "TPOT", metric: "tpot", unit: "s", of: tpot },
  { name: "Latency", metric: "e2e", unit: "s", of: (requests, i) => requests.e2e[i] ?? NaN },
];

function sorted(requests: Requests, measure: Measure): Float64Array {
  const values: number[] = [];
  for (let i = 0; i < requests.count; ++i) {
    const value = measure.of(requests, i);
    if (Number.isFinite(value)) values.push(value);
  }
  return Float64Array.from(values).sort();
}

// The limits of SLOs on percentiles of a latency, in s.
function limits(report: Report, measure: Measure): { name: string; limit: number }[] {
  return report.slos.filter((slo) => slo.figure.startsWith(`${measure.metric}_`)).map((slo) => ({ name: slo.text, limit: slo.limit / 1e3 }));
}

function limitLines(report: Report, measure: Measure, axis: "xAxis" | "yAxis"): object {
  const lines = limits(report, measure);
  if (lines.length === 0) return {};
  return {
    markLine: {
      symbol: "none",
      silent: true,
      lineStyle: { color: "#d55e00", type: "dashed", width: 1.5 },
      label: { formatter: "{b}", position: axis === "xAxis" ? "end" : "insideEndTop", rotate: 0, color: "#d55e00" },
      data: lines.map(({ name, limit }) => ({ name, [axis]: limit })),
    },
  };
}

export function latencies(report: Report, all: Requests[]): void {
  const runs = report.runs;
  if (!all.some((requests) => requests.count > 0)) return;
  const into = section("latency", "Latency", "Fraction of finished requests that take at most this long. A factor has the same width everywhere.");
  const grid = columns(into);
  grid.classList.add("three");
  for (const measure of kMeasures) {
    const values = all.map((requests) => sorted(requests, measure));
    plot(grid, `${measure.name}: distribution`, () => ({
      grid: { left: 8, right: 24, top: runs.length > 1 || limits(report, measure).length > 0 ? 42 : 10, bottom: 22, containLabel: true },
      xAxis: { type: "log", axisLabel: { formatter: (at: number) => duration(at) } },
      yAxis: { type: "value", min: 0, max: 1, axisLabel: { formatter: (at: number) => `${Math.round(100 * at)} %` } },
      series: runs.map((run, r) => ({ name: run.name, type: "line", showSymbol: false, data: distribution(values[r]), ...(r === 0 ? limitLines(report, measure, "xAxis") : {}) })),
    }));
  }
}

// 0.001 -> "1 ms".
function duration(seconds: number): string {
  return seconds < 1 ? `${number(seconds * 1e3, 3)} ms` : `${number(seconds, 3)} s`;
}

function percentiles(grid: HTMLElement, report: Report, all: Requests[], axis: TimeAxis): void {
  report.runs.forEach((run, r) => {
    const requests = all[r];
    if (!requests || requests.count < kOverTimeRequests) return;
    let measure = kMeasures[0];
    let redraw = () => {};
    const name = report.runs.length > 1 ? `${run.name}: ` : "";
    const place = element("div");
    grid.append(place);
    const choice = choose(place, "", kMeasures.map((one) => one.name), (index) => {
      measure = kMeasures[index];
      redraw();
    });
    redraw = plot(place, `${name}percentiles over time, s `, () => ({
      xAxis: valueAxis(axis),
      yAxis: { type: "log" },
      dataZoom: kZoom,
      series: [0.5, 0.9, 0.99].map((part, p) => ({
        name: `P${part * 100}`,
        type: "line",
        showSymbol: false,
        data: measure ? overTime(requests, measure, part).map(([at, value]) => [at / axis.seconds, value]) : [],
        ...(p === 2 && measure ? limitLines(report, measure, "yAxis") : {}),
      })),
    }), { linked: true });
    place.querySelector("figcaption")?.append(choice);
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
function throughput(requests: Requests, axis: TimeAxis): [number, number][] {
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
  return Array.from(tokens, (sum, p) => [(p * width) / axis.seconds, sum / width]);
}

const kPieces = 200;

// Returns the grid of plots over time, for further ones.
export function overRun(report: Report, all: Requests[], axis: TimeAxis): void {
  const runs = report.runs;
  const names = new Map<string, string>();
  for (const run of runs) {
    for (const series of run.series) if (!kMoved.includes(series.name)) names.set(series.name, series.unit);
  }
  if (names.size === 0 && !all.some((requests) => requests.count > 0)) return;
  const into = section("time", "Over time", "Means over equal intervals. The cursor is at the same moment in all plots over time; drag to zoom into an interval, double-click for the whole run.");
  const grid = columns(into);
  if (all.some((requests) => requests.count > 0)) {
    plot(grid, "output tokens per second, spread evenly over each decode", () => ({
      xAxis: valueAxis(axis),
      yAxis: { type: "value" },
      dataZoom: kZoom,
      series: runs.map((run, r) => {
        const requests = all[r];
        return { name: run.name, type: "line", step: "end", showSymbol: false, data: requests ? throughput(requests, axis) : [] };
      }),
    }), { linked: true });
  }
  for (const [name, unit] of names) {
    plot(grid, `${name.replaceAll("_", " ")}${unit && !name.includes(unit) ? `, ${unit}` : ""}`, () => ({
      xAxis: valueAxis(axis),
      yAxis: { type: "value" },
      dataZoom: kZoom,
      series: runs.flatMap((run) =>
        run.series
          .filter((series) => series.name === name)
          .map((series) => ({
            name: run.name,
            type: "line",
            step: "end",
            showSymbol: false,
            areaStyle: runs.length === 1 ? { opacity: 0.2 } : undefined,
            data: series.mean.map((value, i) => [(i * series.width_s) / axis.seconds, value]),
          })),
      ),
    }), { linked: true });
  }
  percentiles(grid, report, all, axis);
}

const kTimes = ["queue", "transfer", "prefill", "recompute", "decode", "host"];

// Where the requests' time went, one bar per run.
export function attribution(into: HTMLElement, all: Run[]): void {
  const runs = all.filter((run) => Number(run.summary["time_latency_s"] ?? 0) > 0);
  if (runs.length === 0) return;
  plot(into, "Attribution of latency, % of the sum over requests", () => ({
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true, valueFormatter: (value: number) => `${number(value, 3)} %` },
    grid: { left: 8, right: 16, top: 28, bottom: 4, containLabel: true },
    xAxis: { type: "value", max: 100, axisLabel: { formatter: "{value} %" } },
    yAxis: { type: "category", data: runs.map((run) => (runs.length > 1 ? run.name : "")), inverse: true, axisTick: { show: false } },
    series: kTimes.map((time) => ({
      name: time,
      type: "bar",
      stack: "all",
      barWidth: 18,
      data: runs.map((run) => (100 * Number(run.summary[`time_${time}_s`] ?? 0)) / Number(run.summary["time_latency_s"] ?? 1)),
    })),
  }), { height: 60 + 28 * runs.length, wide: true });
}

export function memory(runs: Run[]): void {
  const names = [...new Set(runs.flatMap((run) => run.memory.map((term) => term.name)))];
  if (names.length === 0) return;
  const into = section("memory", "KV memory", "What the memory model gives the parts of one GPU's memory.");
  const head = runs.length === 1 ? [] : ["", ...runs.map((run) => run.name)];
  const size = (bytes: number | undefined) => (bytes === undefined ? "–" : (bytes / 1e9).toFixed(2));
  const rows = names.map((name) => [name, ...runs.map((run) => size(run.memory.find((term) => term.name === name)?.bytes))]);
  // All but the first term are negative.
  const rest = (run: Run) => (run.memory.length > 0 ? run.memory.reduce((sum, term) => sum + term.bytes, 0) : undefined);
  rows.push(["KV entries: what remains", ...runs.map((run) => size(rest(run)))]);
  const out = table(into, "One GPU's memory, GB", head, rows);
  out.rows[out.rows.length - 1]?.classList.add("total");
}

export function unpackAll(runs: Run[]): Requests[] {
  return runs.map((run) => unpack(run));
}
