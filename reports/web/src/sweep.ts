// The sweep explorer: every point on parallel axes, and any two metrics against each other with the points
// that no other one beats.

import type { EChartsCoreOption } from "echarts/core";
import type { Sweep, SweepPoint } from "./data.js";
import { choose, colours, element, number, plot, section, table } from "./page.js";

const kTablePoints = 500;
const kFirst = ["output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "e2e_p99_ms", "preemptions"];
// Metrics of which more is better; less is for all others.
const kMore = /per_s$|^busy$|^reused|^reclaimed$|^calls_finished$/;

export function sweeps(given: Sweep[]): void {
  given.forEach((sweep, s) => {
    const into = section(`sweep${s}`, given.length > 1 ? `Sweep ${s + 1}` : "Sweep", `${sweep.points.length} points of ${sweep.dir}.`);
    const metrics = numeric(sweep.points);
    const chosen = kFirst.filter((name) => metrics.includes(name));
    plot(into, "All points: axes, then metrics", () => parallel(sweep, chosen), 360);
    let x = chosen[0] ?? metrics[0] ?? "";
    let y = chosen[1] ?? metrics[1] ?? "";
    const line = element("div");
    into.append(line);
    choose(line, "x", ordered(metrics, x), (index) => { x = ordered(metrics, chosen[0] ?? "")[index] ?? x; update(); });
    choose(line, " y", ordered(metrics, y), (index) => { y = ordered(metrics, chosen[1] ?? "")[index] ?? y; update(); });
    const update = plot(into, "Two metrics, and the points that no other beats in both", () => scatter(sweep, x, y), 380);
    const all = document.createElement("details");
    all.append(element("summary", `The points as a table${sweep.points.length > kTablePoints ? ` (the first ${kTablePoints})` : ""}`));
    into.append(all);
    table(all, "Points", [...sweep.axes, ...chosen], sweep.points.slice(0, kTablePoints).map((point) => [
      ...point.values, ...chosen.map((name) => number(point.metrics[name]))]));
  });
}

function ordered(names: string[], first: string): string[] {
  return [first, ...names.filter((name) => name !== first)];
}

function numeric(points: SweepPoint[]): string[] {
  const first = points[0]?.metrics ?? {};
  return Object.keys(first).filter((name) => typeof first[name] === "number");
}

function value(point: SweepPoint, name: string): number {
  return Number(point.metrics[name] ?? NaN);
}

function parallel(sweep: Sweep, metrics: string[]): EChartsCoreOption {
  const axes = sweep.axes.map((name, dim) => {
    const values = [...new Set(sweep.points.map((point) => point.values[dim] ?? ""))];
    const numbers = values.every((text) => text !== "" && Number.isFinite(Number(text)));
    return numbers ? { dim, name, type: "value", scale: true } : { dim, name, type: "category", data: values };
  });
  metrics.forEach((name, i) => axes.push({ dim: sweep.axes.length + i, name, type: "value", scale: true }));
  return {
    tooltip: { show: false },
    parallel: { left: 64, right: 96, top: 56, bottom: 32 },
    parallelAxis: axes.map((axis) => ({ ...axis, nameTextStyle: { fontSize: 10 } })),
    series: [{
      type: "parallel",
      lineStyle: { width: 1, opacity: 0.5, color: colours[0] },
      data: sweep.points.map((point) => [
        ...point.values.map((text, dim) => (axes[dim]?.type === "value" ? Number(text) : text)),
        ...metrics.map((name) => value(point, name))]),
    }],
  };
}

// Points that no other is at least as good as in both and better in one.
function front(sweep: Sweep, x: string, y: string): SweepPoint[] {
  const sign = (name: string) => (kMore.test(name) ? -1 : 1);
  const known = sweep.points.filter((point) => Number.isFinite(value(point, x)) && Number.isFinite(value(point, y)));
  const sorted = [...known].sort((a, b) =>
    sign(x) * (value(a, x) - value(b, x)) || sign(y) * (value(a, y) - value(b, y)));
  const out: SweepPoint[] = [];
  let best = Infinity;
  for (const point of sorted) {
    const here = sign(y) * value(point, y);
    if (here < best) {
      out.push(point);
      best = here;
    }
  }
  return out;
}

function scatter(sweep: Sweep, x: string, y: string): EChartsCoreOption {
  const at = (point: SweepPoint) => ({ value: [value(point, x), value(point, y)], name: label(sweep, point) });
  return {
    tooltip: { trigger: "item", confine: true },
    xAxis: { type: "value", scale: true, name: x, nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "value", scale: true, name: y },
    series: [
      { name: "points", type: "scatter", symbolSize: 6, itemStyle: { opacity: 0.6 }, data: sweep.points.map(at) },
      { name: "not beaten", type: "line", symbol: "diamond", symbolSize: 10, data: front(sweep, x, y).map(at) },
    ],
  };
}

function label(sweep: Sweep, point: SweepPoint): string {
  return sweep.axes.map((name, i) => `${name}=${point.values[i] ?? ""}`).join(" ");
}
