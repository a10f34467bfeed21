// The sweep explorer: every point on parallel axes, and any two metrics against each other, with the points that no
// other one beats.

import type { EChartsCoreOption } from "echarts/core";
import type { Sweep, SweepPoint } from "./data.js";
import { choose, element, isDark, number, plot, section, table } from "./page.js";

const kTablePoints = 500;
const kNames = 16;
const kFirst = ["output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "e2e_p99_ms", "preemptions"];
// Metrics of which more is better; for all others less is.
const kMore = /per_s$|^busy$|^reused|^reclaimed$|^requests_finished$/;

export function sweeps(given: Sweep[]): void {
  given.forEach((sweep, s) => {
    const into = section(`sweep${s}`, given.length > 1 ? `Sweep ${s + 1}` : "Sweep", `${sweep.points.length} ${sweep.points.length === 1 ? "point" : "points"} of ${sweep.dir}.`);
    const metrics = numeric(sweep.points);
    const chosen = kFirst.filter((name) => metrics.includes(name));
    const colouring = element("div");
    into.append(colouring);
    let by = chosen[1] ?? chosen[0] ?? "";
    let repaint = () => {};
    choose(colouring, "colour by", ordered(chosen, by), (index) => { by = ordered(chosen, chosen[1] ?? "")[index] ?? by; repaint(); });
    repaint = plot(into, "All points: axes, then metrics. Drag along an axis to select lines", () => parallel(sweep, chosen, by), 360);
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

function parallel(sweep: Sweep, metrics: string[], by: string): EChartsCoreOption {
  const axes = sweep.axes.map((name, dim) => {
    const values = [...new Set(sweep.points.map((point) => point.values[dim] ?? ""))];
    const numbers = values.every((text) => text !== "" && Number.isFinite(Number(text)));
    if (numbers && values.length > kNames) return { dim, name, type: "value", scale: true };
    // A few values are spaced evenly, whatever their distances: 4, 8, 16 would crowd at one end.
    if (numbers) values.sort((a, b) => Number(a) - Number(b));
    return { dim, name, type: "category", data: values };
  });
  metrics.forEach((name, i) => axes.push({ dim: sweep.axes.length + i, name, type: "value", scale: true }));
  const painted = sweep.points.map((point) => value(point, by)).filter((one) => Number.isFinite(one));
  return {
    tooltip: { show: false },
    // The colours differ in lightness, so that grey prints and all kinds of colour vision distinguish them.
    visualMap: {
      dimension: sweep.axes.length + metrics.indexOf(by),
      min: Math.min(...painted),
      max: Math.max(...painted),
      formatter: (at: number) => number(at, 3),
      calculable: true,
      right: 0,
      top: "middle",
      itemHeight: 200,
      inRange: { color: isDark() ? ["#f0e442", "#56b4e9", "#4a6a8a"] : ["#d9a400", "#009e73", "#00263d"] },
      textStyle: { color: isDark() ? "#dddddd" : "#222222" },
    },
    parallel: { left: 64, right: 150, top: 56, bottom: 32 },
    parallelAxis: axes.map((axis) => ({ ...axis, nameTextStyle: { fontSize: 10 } })),
    series: [{
      type: "parallel",
      lineStyle: { width: 1, opacity: 0.6 },
      data: sweep.points.map((point) => [
        ...point.values.map((text, dim) => (axes[dim]?.type === "value" ? Number(text) : text)),
        ...metrics.map((name) => value(point, name))]),
    }],
  };
}

// The points for which no other one is at least as good in both metrics and better in one.
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
