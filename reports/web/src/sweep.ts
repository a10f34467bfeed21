// The sweep explorer: the best point, a heat map with the line where the SLOs end, every point on parallel axes, and
// any two metrics against each other, with the points that no other one beats. A click on a point shows its run.

import type { EChartsCoreOption } from "echarts/core";
import type { Report, Sweep, SweepPoint } from "./data.js";
import { cardsOf, keepsAll, sloOf } from "./figures.js";
import { term, unitOf } from "./glossary.js";
import { chartOf, choose, colours, columns, element, isDark, isNarrow, number, plot, section, table } from "./page.js";
import { bestOf, capacityTable, failures, idle, label, loadAxis, ofLoad, value, valuesOf, type Best } from "./sweep_answer.js";
import { quantity, scaled, scaleOf } from "./units.js";

const kTablePoints = 500;
const kNames = 16;
const kFirst = ["ttft_p99_ms", "tpot_p95_ms", "output_tokens_per_s", "usd_per_million_output_tokens", "prefix_reuse", "e2e_p99_ms", "preemptions"];
// Metrics of which more is better; for all others less is.
const kMore = /per_s$|^busy$|^reused|^reclaimed$|^requests_finished$|^prefix_reuse$/;

interface View {
  report: Report;
  sweep: Sweep;
  best?: Best;
  chosen?: SweepPoint;
  choose: (point: SweepPoint) => void;
}

export function sweeps(report: Report): void {
  report.sweeps.forEach((sweep, s) => {
    const about = `${number(sweep.points.length)} ${sweep.points.length === 1 ? "point" : "points"} of ${sweep.dir}.${report.slos.length > 0 ? "" : " With kvtwin report --slo='ttft_p99<2s' the map shows where the SLO ends."}`;
    const into = section(`sweep${s}`, report.sweeps.length > 1 ? `Sweep ${s + 1}` : "Sweep", about);
    const load = loadAxis(sweep);
    const { best, rows } = load < 0 ? { best: bestOf(sweep, report.slos), rows: [] } : ofLoad(sweep, report.slos, load);
    if (best) into.append(element("p", best.sentence, "limits"));
    else if (load >= 0) into.append(element("p", `${sweep.axes[load]} is the load, so no point is the best; with --slo the page names the highest load of each other choice.`, "limits"));
    if (rows.length > 0) capacityTable(into, sweep, load, rows);
    failures(into, sweep);
    idle(into, sweep);
    const place = element("div", "", "chosen");
    const view: View = { report, sweep, best, choose: () => {} };
    const name = (what: string) => (report.sweeps.length > 1 ? `Sweep ${s + 1}: ${what}` : what);
    const metrics = numeric(sweep.points);
    const first = [...report.slos.map((slo) => slo.figure), ...kFirst];
    const chosen = [...new Set(first)].filter((one) => metrics.includes(one) && sweep.points.some((point) => value(point, one) !== 0));
    const redraw = map(into, view, chosen, name);
    into.append(place);
    view.choose = (point) => {
      view.chosen = point;
      panel(place, view, point);
      redraw();
    };
    two(into, view, metrics, chosen, name);
    points(into, view, chosen);
    const shown = best?.point ?? sweep.points[0];
    if (shown) view.choose(shown);
  });
}

// A chosen point: its figures, what limits it, and the way to its run.
function panel(into: HTMLElement, { report, sweep, best }: View, point: SweepPoint): void {
  const head = element("h3", `${point === best?.point ? `★ ${best.mark}: ` : ""}${label(sweep, point)}`);
  const cards = element("div", "", "cards");
  for (const card of cardsOf(report.slos)) {
    const given = point.metrics[card.name];
    const box = element("div", "", "card");
    const name = element("h4");
    name.append(term(card.label, card.name));
    const line = element("div", "", "value");
    line.append(element("b", quantity(typeof given === "number" ? given : undefined, card.unit)));
    const slo = sloOf(report.slos, point.slos, card.name);
    if (slo) line.append(element("span", `${slo.value[2] ? "✓" : "✗"} ${slo.slo.text}, ${(100 * slo.value[1]).toFixed(0)}\u00a0% used`, "verdict"));
    if (slo) box.classList.add(slo.value[2] ? "kept" : "broken");
    box.append(name, line);
    cards.append(box);
  }
  const run = report.runs.findIndex((one) => one.dir === point.dir);
  const way = element("p", "", "about");
  if (point.metrics["limited_by"]) way.append("Limited by ", term(String(point.metrics["limited_by"]).replaceAll("_", " "), "limited_by"), ". ");
  if (run >= 0) {
    const link = document.createElement("a");
    link.href = "#overview";
    link.textContent = `Its run is on this page: ${report.runs[run]?.name}`;
    way.append(link);
  } else {
    way.append("Page of its run: ", element("code", `kvtwin report ${point.dir} --out=run.html`));
  }
  into.replaceChildren(head, cards, way);
}

// The heat map and its choices: a metric, two axes, and values of the other axes. Returns a function that redraws it.
function map(into: HTMLElement, view: View, metrics: string[], name: (what: string) => string): () => void {
  const { sweep } = view;
  const varied = sweep.axes.map((_, i) => i).filter((i) => valuesOf(sweep, i).length > 1);
  let metric = metrics[0] ?? "";
  if (metric === "" || varied.length === 0) return () => {};
  const [x = 0, y] = varied;
  const fixed = new Map(varied.slice(2).map((axis) => [axis, view.best?.point.values[axis] ?? ""]));
  let redraw = () => {};
  const line = element("div", "", "choices");
  into.append(line);
  choose(line, "metric", metrics, (index) => {
    metric = metrics[index] ?? metric;
    redraw();
  });
  for (const [axis, first] of fixed) {
    const values = valuesOf(sweep, axis);
    choose(line, sweep.axes[axis] ?? "", ordered(values, first), (index) => {
      fixed.set(axis, ordered(values, first)[index] ?? first);
      redraw();
    });
  }
  const shown = () => sweep.points.filter((point) => [...fixed].every(([axis, text]) => point.values[axis] === text));
  const title = name(y === undefined ? "One metric over the axis" : "Heat map: two axes, coloured by one metric");
  const height = y === undefined ? 280 : 130 + 34 * Math.min(16, valuesOf(sweep, y).length);
  redraw = plot(into, title, () => {
    queueMicrotask(() => clicks(title, view));
    return y === undefined ? curve(view, shown(), x, metric) : heat(view, shown(), [x, y], metric);
  }, { height });
  return redraw;
}

const listening = new Set<string>();

function clicks(title: string, view: View): void {
  const chart = chartOf(title);
  if (!chart || listening.has(title)) return;
  listening.add(title);
  chart.on("click", (event) => {
    const at = (event.data as { point?: number } | undefined)?.point;
    const point = at === undefined ? undefined : view.sweep.points[at];
    if (point) view.choose(point);
  });
}

function reading(metric: string, points: SweepPoint[]): (at: number) => string {
  const scale = scaleOf(unitOf(metric), Math.max(...points.map((point) => Math.abs(value(point, metric))).filter(Number.isFinite)));
  return (at) => scaled(at, scale) + (scale.unit ? ` ${scale.unit}` : "");
}

interface CellApi {
  value(index: number): number;
  coord(at: [number, number]): [number, number];
  size(extent: [number, number]): [number, number];
}

// Cells with this many neighbours or fewer have their values written into them.
const kWritten = 150;

function heat(view: View, points: SweepPoint[], [x, y]: [number, number], metric: string): EChartsCoreOption {
  const { sweep } = view;
  const xs = valuesOf(sweep, x);
  const ys = valuesOf(sweep, y);
  const read = reading(metric, points);
  const cell = (point: SweepPoint) => [xs.indexOf(point.values[x] ?? ""), ys.indexOf(point.values[y] ?? "")] as const;
  const of = points.map((point) => value(point, metric)).filter(Number.isFinite);
  const low = Math.min(...of);
  const high = Math.max(...of);
  const light = isDark() ? ["#1d3345", "#0072b2", "#a9dcff"] : ["#e9f3fa", "#5fa8d3", "#0b3c5d"];
  // Values are written where they fit: without their unit in narrow cells, not at all in narrower ones.
  const room = (Math.min(window.innerWidth, 1400) - 110) / Math.max(1, xs.length);
  const unit = room < 62 ? scaleOf(unitOf(metric), Math.max(...of.map(Math.abs))).unit : "";
  const written = (at: number) => (unit ? read(at).slice(0, -unit.length - 1) : read(at));
  // Beyond this fraction of the colours, the other ink is easier to read.
  const bright = (at: number) => (high > low ? (at - low) / (high - low) : 0) > 0.65;
  const data = points.map((point) => {
    const at = value(point, metric);
    const lines = point === view.best?.point ? "★ " : keepsAll(point.slos) === false ? "✗ " : "";
    return {
      value: [...cell(point), at],
      point: sweep.points.indexOf(point),
      label: { show: points.length <= kWritten && room >= 34, fontSize: room < 62 ? 10 : 12, formatter: (room < 48 ? lines.trim() : lines) + written(at), color: isDark() === bright(at) ? "#10161c" : "#ffffff", fontWeight: lines === "★ " ? "bold" : "normal" },
    };
  });
  return {
    grid: { left: 10, right: 20, top: 26, bottom: 64, containLabel: true },
    legend: { show: false },
    tooltip: { trigger: "item", confine: true, formatter: (at: { data: { point?: number } }) => tip(view, at.data.point, metric, read) },
    xAxis: { type: "category", data: xs, name: sweep.axes[x], nameLocation: "middle", nameGap: 24, splitLine: { show: false } },
    yAxis: { type: "category", data: ys, name: sweep.axes[y], nameLocation: "end", nameTextStyle: { align: "left" }, splitLine: { show: false } },
    visualMap: { min: low, max: high > low ? high : low + 1, seriesIndex: 0, dimension: 2, orient: "horizontal", left: "center", bottom: 0, itemWidth: 12, itemHeight: 160, formatter: (at: number) => read(at), calculable: true, inRange: { color: light }, textStyle: { color: isDark() ? "#d5d8dd" : "#22262b" } },
    series: [
      { name: metric, type: "heatmap", data, cursor: "pointer" },
      { name: "SLO", type: "custom", silent: true, z: 5, encode: { x: 0, y: 1 }, data: borders(points, cell), renderItem: edge },
      { name: "chosen", type: "custom", silent: true, z: 6, encode: { x: 0, y: 1 }, data: points.filter((point) => point === view.chosen).map((point) => [...cell(point)]), renderItem: frame },
    ],
  };
}

// The line between points that keep the SLOs and points that do not: [x, y, 1 if it is right of the cell, else above].
function borders(points: SweepPoint[], cell: (point: SweepPoint) => readonly [number, number]): number[][] {
  const kept = new Map(points.map((point) => [cell(point).join(), keepsAll(point.slos)]));
  const out: number[][] = [];
  for (const point of points) {
    const [i, j] = cell(point);
    const here = keepsAll(point.slos);
    for (const [di, dj, side] of [[1, 0, 1], [0, 1, 0]] as const) {
      const other = kept.get([i + di, j + dj].join());
      if (here !== undefined && other !== undefined && here !== other) out.push([i, j, side]);
    }
  }
  return out;
}

function edge(_: unknown, api: CellApi): object {
  const [x, y] = api.coord([api.value(0), api.value(1)]);
  const [width, height] = api.size([1, 1]);
  const right = api.value(2) === 1;
  const shape = right
    ? { x1: x + width / 2, y1: y - height / 2, x2: x + width / 2, y2: y + height / 2 }
    : { x1: x - width / 2, y1: y - height / 2, x2: x + width / 2, y2: y - height / 2 };
  return { type: "line", shape, style: { stroke: "#d55e00", lineWidth: 4, lineCap: "round" } };
}

function frame(_: unknown, api: CellApi): object {
  const [x, y] = api.coord([api.value(0), api.value(1)]);
  const [width, height] = api.size([1, 1]);
  return { type: "rect", shape: { x: x - width / 2 + 3, y: y - height / 2 + 3, width: width - 6, height: height - 6 }, style: { fill: "none", stroke: isDark() ? "#ffffff" : "#10161c", lineWidth: 2 } };
}

function tip(view: View, at: number | undefined, metric: string, read: (at: number) => string): string {
  const point = at === undefined ? undefined : view.sweep.points[at];
  if (!point) return "";
  const slos = view.report.slos.map((slo, s) => {
    const judged = point.slos[s];
    return judged ? `${judged[2] ? "✓" : "✗"} ${slo.text}, ${(100 * judged[1]).toFixed(0)} % used` : `? ${slo.text}`;
  });
  return [label(view.sweep, point), `${metric}: ${read(value(point, metric))}`, ...slos, "click: its run"].map(escaped).join("<br>");
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// A sweep of one axis.
function curve(view: View, points: SweepPoint[], x: number, metric: string): EChartsCoreOption {
  const xs = valuesOf(view.sweep, x);
  const read = reading(metric, points);
  const sorted = [...points].sort((a, b) => xs.indexOf(a.values[x] ?? "") - xs.indexOf(b.values[x] ?? ""));
  const limits = view.report.slos.filter((slo) => slo.figure === metric);
  return {
    grid: { left: 8, right: 24, top: 24, bottom: 30, containLabel: true },
    legend: { show: false },
    tooltip: { trigger: "item", confine: true, formatter: (at: { data: { point?: number } }) => tip(view, at.data.point, metric, read) },
    xAxis: { type: "category", data: xs, name: view.sweep.axes[x], nameLocation: "middle", nameGap: 24 },
    yAxis: { type: "value", scale: true, axisLabel: { formatter: read } },
    series: [{
      name: metric,
      type: "line",
      // Names have no order, so only points are drawn.
      lineStyle: { width: xs.every((text) => text !== "" && Number.isFinite(Number(text))) ? 2 : 0 },
      symbolSize: 9,
      cursor: "pointer",
      data: sorted.map((point) => ({
        value: [point.values[x] ?? "", value(point, metric)],
        point: view.sweep.points.indexOf(point),
        symbol: keepsAll(point.slos) === false ? "diamond" : "circle",
        symbolSize: point === view.chosen ? 15 : 9,
        label: { show: point === view.best?.point, position: "top", formatter: `★ ${view.best?.mark ?? ""}`, color: "inherit" },
      })),
      markLine: limits.length > 0 ? { symbol: "none", silent: true, lineStyle: { color: "#d55e00", type: "dashed", width: 2 }, label: { formatter: "{b}", position: "insideEndTop", color: "#d55e00" }, data: limits.map((slo) => ({ name: slo.text, yAxis: slo.limit })) } : undefined,
    }],
  };
}

// All points on parallel axes, and two metrics against each other.
function two(into: HTMLElement, view: View, metrics: string[], chosen: string[], name: (what: string) => string): void {
  const { sweep } = view;
  const grid = columns(into);
  const left = element("div");
  const right = element("div");
  grid.append(left, right);
  let by = chosen[0] ?? "";
  let repaint = () => {};
  choose(left, "colour by", chosen.slice(0, 4), (index) => { by = chosen[index] ?? by; repaint(); });
  repaint = plot(left, name("All points: axes, then metrics. Drag along an axis to select lines"), () => parallel(sweep, chosen.slice(0, 4), by), { height: isNarrow() ? 70 + kStacked * (sweep.axes.length + Math.min(4, chosen.length)) : 340 });
  let x = metrics.includes("output_tokens_per_s") ? "output_tokens_per_s" : metrics[0] ?? "";
  let y = chosen[0] ?? metrics[1] ?? "";
  const xs = ordered(metrics, x);
  const ys = ordered(metrics, y);
  const line = element("div", "", "choices");
  right.append(line);
  choose(line, "x", xs, (index) => { x = xs[index] ?? x; update(); });
  choose(line, "y", ys, (index) => { y = ys[index] ?? y; update(); });
  const title = name("Two metrics, and the points that no other beats in both");
  const update = plot(right, title, () => {
    queueMicrotask(() => clicks(title, view));
    return scatter(view, x, y);
  }, { height: 340 });
}

function points(into: HTMLElement, view: View, chosen: string[]): void {
  const { sweep } = view;
  const all = document.createElement("details");
  all.append(element("summary", `The points as a table${sweep.points.length > kTablePoints ? ` (the first ${kTablePoints})` : ""}`));
  into.append(all);
  const shown = sweep.points.slice(0, kTablePoints);
  const slos = view.report.slos.length > 0;
  const out = table(all, "Points", [...sweep.axes, ...chosen, ...(slos ? ["SLOs"] : [])], shown.map((point) => [
    ...point.values, ...chosen.map((name) => number(point.metrics[name])),
    ...(slos ? [{ true: "✓ kept", false: "✗ broken" }[String(keepsAll(point.slos))] ?? "not known"] : [])]));
  [...(out.tBodies[0]?.rows ?? [])].forEach((row, i) => {
    const point = shown[i];
    if (!point) return;
    row.classList.add("choice");
    row.addEventListener("click", () => view.choose(point));
  });
}

function ordered(names: string[], first: string): string[] {
  return [first, ...names.filter((name) => name !== first)];
}

function numeric(points: SweepPoint[]): string[] {
  const first = points[0]?.metrics ?? {};
  return Object.keys(first).filter((name) => typeof first[name] === "number");
}

interface ParallelAxis {
  dim: number;
  name: string;
  type: string;
  scale?: boolean;
  data?: string[];
  axisLabel?: object;
}

// The height of an axis where they are below each other.
const kStacked = 58;

function parallel(sweep: Sweep, metrics: string[], by: string): EChartsCoreOption {
  const axes = sweep.axes.map((name, dim): ParallelAxis => {
    const values = [...new Set(sweep.points.map((point) => point.values[dim] ?? ""))];
    const numbers = values.every((text) => text !== "" && Number.isFinite(Number(text)));
    if (numbers && values.length > kNames) return { dim, name, type: "value", scale: true };
    // A few values are spaced evenly, whatever their distances: 4, 8, 16 would crowd at one end.
    if (numbers) values.sort((a, b) => Number(a) - Number(b));
    return { dim, name, type: "category", data: values };
  });
  for (const [i, name] of metrics.entries()) {
    const scale = scaleOf(unitOf(name), Math.max(...sweep.points.map((point) => Math.abs(value(point, name))).filter(Number.isFinite)));
    axes.push({ dim: sweep.axes.length + i, name: scale.unit ? `${name}, ${scale.unit}` : name, type: "value", scale: true, axisLabel: { formatter: (at: number) => number(at * scale.times, 4) } });
  }
  const narrow = isNarrow();
  const painted = sweep.points.map((point) => value(point, by)).filter((one) => Number.isFinite(one));
  return {
    tooltip: { show: false },
    // The colours differ in lightness, so that grey prints and all kinds of colour vision distinguish them.
    visualMap: {
      dimension: sweep.axes.length + metrics.indexOf(by),
      min: Math.min(...painted),
      max: Math.max(...painted),
      formatter: reading(by, sweep.points),
      calculable: true,
      ...(narrow ? { orient: "horizontal", left: "center", bottom: 0 } : { right: 0, top: "middle" }),
      itemWidth: 12,
      itemHeight: 160,
      inRange: { color: isDark() ? ["#f0e442", "#56b4e9", "#4a6a8a"] : ["#d9a400", "#009e73", "#00263d"] },
      textStyle: { color: isDark() ? "#dddddd" : "#222222" },
    },
    parallel: narrow ? { layout: "vertical", left: 14, right: 22, top: 24, bottom: 76 } : { left: 40, right: 110, top: 48, bottom: 16 },
    // Side by side on a narrow screen, their labels would overlap.
    parallelAxis: axes.map((axis) => narrow
      ? { ...axis, nameLocation: "start", nameGap: 0, nameTextStyle: { fontSize: 11, align: "left", verticalAlign: "bottom", padding: [0, 0, 4, 0] } }
      : { ...axis, nameRotate: 12, nameTextStyle: { fontSize: 10 } }),
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

function scatter({ sweep, best }: View, x: string, y: string): EChartsCoreOption {
  const at = (point: SweepPoint) => ({ value: [value(point, x), value(point, y)], name: label(sweep, point), point: sweep.points.indexOf(point) });
  const scale = (metric: string) => scaleOf(unitOf(metric), Math.max(...sweep.points.map((point) => Math.abs(value(point, metric))).filter(Number.isFinite)));
  const axis = (metric: string) => ({ type: "value", scale: true, name: scale(metric).unit ? `${metric}, ${scale(metric).unit}` : metric, axisLabel: { formatter: (at: number) => number(at * scale(metric).times, 6) } });
  const readX = reading(x, sweep.points);
  const readY = reading(y, sweep.points);
  const star = best ? [{ ...at(best.point), label: { show: true, position: "top", formatter: `★ ${best.mark}`, color: "inherit" } }] : [];
  return {
    grid: { left: 10, right: 24, top: 50, bottom: 30, containLabel: true },
    tooltip: { trigger: "item", confine: true, formatter: (shown: { data: { name: string; value: number[] } }) => [shown.data.name, `${x}: ${readX(shown.data.value[0] ?? NaN)}`, `${y}: ${readY(shown.data.value[1] ?? NaN)}`].map(escaped).join("<br>") },
    xAxis: { ...axis(x), nameLocation: "middle", nameGap: 28 },
    yAxis: { ...axis(y), nameTextStyle: { align: "left" } },
    series: [
      { name: "points", type: "scatter", symbolSize: 7, itemStyle: { opacity: 0.6 }, cursor: "pointer", data: sweep.points.map(at) },
      { name: "not beaten", type: "line", symbol: "diamond", symbolSize: 10, data: front(sweep, x, y).map(at) },
      { name: best?.mark ?? "", type: "scatter", symbolSize: 13, color: colours[3], data: star, z: 4 },
    ],
  };
}
