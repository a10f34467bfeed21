// Copies between tiers: hidden and exposed time, over the run and copy by copy; and the tiers of cached pages.

import type { EChartsCoreOption } from "echarts/core";
import type { Run, Series, Timeline } from "./data.js";
import { colours, columns, plot, section } from "./page.js";
import { bar } from "./sessions.js";
import { categoryAxis, kZoom, valueAxis, type TimeAxis } from "./time_axis.js";

// Series that are drawn here, and not under "Over time".
export const kMoved = ["pages_cached", "pages_host", "pages_disk", "pages_int2", "time_steps", "time_hidden", "time_exposed", "rate_in", "rate_out"];

export function transfers(runs: Run[], axis: TimeAxis): void {
  const shown = runs.filter((run) => kMoved.some((name) => moves(run, name)) || run.timeline);
  if (shown.length === 0) return;
  const into = section(
    "transfers",
    "Transfers and tiers",
    "Time of engines over the run: steps without a copy, steps during a copy (the copy is hidden), and waits for a copy (exposed). Sums equal those of the metrics.",
  );
  const grid = columns(into);
  for (const run of shown) {
    const name = runs.length > 1 ? `${run.name}: ` : "";
    if (moves(run, "time_hidden") || moves(run, "time_exposed")) {
      plot(grid, `${name}compute and copies, engines`, () => overlap(run, axis), { linked: true });
      plot(grid, `${name}bytes moved, GB/s`, () => rates(run, axis), { linked: true });
    }
    if (moves(run, "pages_cached") || moves(run, "pages_host")) plot(grid, `${name}pages by tier`, () => tiers(run, axis), { linked: true });
    if (moves(run, "pages_int2")) plot(grid, `${name}pages by format`, () => formats(run, axis), { linked: true });
    if (run.timeline) {
      const timeline = run.timeline;
      plot(grid, `${name}copies during steps, s`, () => lanes(timeline), { height: 110 + 36 * rowsOf(timeline).length, wide: true });
    }
  }
}

function moves(run: Run, name: string): boolean {
  return run.series.some((series) => series.name === name && series.mean.some((value) => value > 0));
}

function find(run: Run, name: string): Series | undefined {
  return run.series.find((series) => series.name === name);
}

// Interval widths differ by powers of two, because each series doubles its own when it runs out of room. The value of
// a series at another's times is that of the interval that contains the time.
function at(series: Series | undefined, seconds: number): number {
  if (!series) return 0;
  return series.mean[Math.floor(seconds / series.width_s + 1e-9)] ?? 0;
}

// One point per interval up to the common end of the time axis.
function points(run: Run, names: string[], axis: TimeAxis, value: (read: (name: string) => number) => number): [number, number][] {
  const all = names.map((name) => find(run, name)).filter((series): series is Series => series !== undefined);
  const width = Math.min(...all.map((series) => series.width_s));
  const count = Math.max(2, Math.ceil(axis.end / width - 1e-9) + 1);
  return Array.from({ length: count }, (_, i) => [i * width, value((name) => at(find(run, name), (i + 0.5) * width))]);
}

// Stacked areas, on a category axis: with two value axes ECharts would stack along the first, time.
function area(name: string, colour: string | undefined, stack: string, data: [number, number][]): object {
  const values = data.map(([, value]) => value);
  return { name, type: "line", step: "start", stack, showSymbol: false, lineStyle: { width: 0.5 }, color: colour, areaStyle: { opacity: 0.75 }, data: values };
}

function seconds(run: Run, names: string[], axis: TimeAxis): object {
  return categoryAxis(axis, points(run, names, axis, () => 0).map(([second]) => second));
}

function overlap(run: Run, axis: TimeAxis): EChartsCoreOption {
  const names = ["time_steps", "time_hidden", "time_exposed"];
  const exposed = (read: (name: string) => number) => Math.max(0, read("time_exposed"));
  const hidden = (read: (name: string) => number) => Math.min(read("time_steps"), read("time_hidden"));
  return {
    xAxis: seconds(run, names, axis),
    yAxis: { type: "value" },
    dataZoom: kZoom,
    series: [
      area("step without a copy", colours[0], "time", points(run, names, axis, (read) => Math.max(0, read("time_steps") - hidden(read)))),
      area("step during a copy: hidden", colours[2], "time", points(run, names, axis, hidden)),
      area("wait for a copy: exposed", colours[3], "time", points(run, names, axis, exposed)),
    ],
  };
}

function rates(run: Run, axis: TimeAxis): EChartsCoreOption {
  const line = (name: string, key: string, colour: string | undefined) => ({
    name, type: "line", step: "start", showSymbol: false, color: colour, data: points(run, ["rate_in", "rate_out"], axis, (read) => read(key)).map(([second, value]) => [second / axis.seconds, value]),
  });
  return {
    xAxis: valueAxis(axis),
    yAxis: { type: "value" },
    dataZoom: kZoom,
    series: [line("to the GPU", "rate_in", colours[1]), line("from the GPU", "rate_out", colours[4])],
  };
}

function tiers(run: Run, axis: TimeAxis): EChartsCoreOption {
  const names = ["pages_held", "pages_cached", "pages_host", "pages_disk"];
  const labels = ["GPU, needed by requests", "GPU, cached", "host", "disk"];
  return {
    xAxis: seconds(run, names, axis),
    yAxis: { type: "value" },
    dataZoom: kZoom,
    series: names
      .map((name, i) => ({ name, label: labels[i] ?? name, colour: colours[[0, 4, 1, 6][i] ?? 0] }))
      .filter(({ name }) => moves(run, name))
      .map(({ name, label, colour }) => area(label, colour, "pages", points(run, names, axis, (read) => read(name)))),
  };
}

// Fractions of the pages that requests need; TriAxialKV has two pools.
function formats(run: Run, axis: TimeAxis): EChartsCoreOption {
  const names = ["pages_held", "pages_int2"];
  return {
    xAxis: seconds(run, names, axis),
    yAxis: { type: "value" },
    dataZoom: kZoom,
    series: [
      area("int2", colours[2], "pages", points(run, names, axis, (read) => read("pages_int2"))),
      area("int4", colours[5], "pages", points(run, names, axis, (read) => Math.max(0, read("pages_held") - read("pages_int2")))),
    ],
  };
}

const kRows = ["steps", "host to GPU", "GPU to host"];

// Rows such as "engine 1: host to GPU" that have spans, in order.
function rowsOf(timeline: Timeline): { key: number; label: string }[] {
  const keys = [...new Set(timeline.spans.map(([engine, row]) => engine * 3 + row))].sort((a, b) => a - b);
  const engines = new Set(timeline.spans.map(([engine]) => engine)).size;
  return keys.map((key) => ({ key, label: (engines > 1 ? `engine ${Math.floor(key / 3)}: ` : "") + (kRows[key % 3] ?? "") }));
}

function lanes(timeline: Timeline): EChartsCoreOption {
  const rows = rowsOf(timeline);
  const lane = new Map(rows.map(({ key }, i) => [key, i]));
  return {
    tooltip: { trigger: "item", confine: true, formatter: (shown: { seriesName: string; data: { value: number[] } }) => tip(shown) },
    grid: { left: 8, right: 24, top: 28, bottom: 40, containLabel: true },
    xAxis: { type: "value", scale: true },
    yAxis: { type: "category", data: rows.map(({ label }) => label), inverse: true },
    dataZoom: [...kZoom, { type: "slider", height: 16, bottom: 8 }],
    series: timeline.names.map((name, n) => ({
      name,
      type: "custom",
      itemStyle: { color: colours[{ decode: 0, prefill: 1, recall: 2, offload: 4 }[name] ?? n % colours.length] },
      encode: { x: [1, 2], y: 0 },
      renderItem: bar,
      data: timeline.spans
        .filter((span) => span[2] === n)
        .map(([engine, row, , from, to, pages]) => ({ value: [lane.get(engine * 3 + row) ?? 0, from, to, pages] })),
    })),
  };
}

function tip(shown: { seriesName: string; data: { value: number[] } }): string {
  const [, from = 0, to = 0, pages = 0] = shown.data.value;
  return `${shown.seriesName}: ${((to - from) * 1e3).toFixed(3)} ms from ${from.toFixed(4)} s${pages > 0 ? `<br>${pages} pages` : ""}`;
}
