// Accuracy against bytes of KV (kvtwin evaluate).

import type { EChartsCoreOption } from "echarts/core";

import type { Evidence, QualityRow } from "./data.js";
import { errorBar, kEncode } from "./error_bars.js";
import { choose, colours, isDark, number, plot, section, fraction, symbols, table } from "./page.js";

const simulated = (row: QualityRow) => row.simulated_tokens_per_s ?? 0;

// Left: retained bytes, which limit how many requests fit. Right: simulated throughput of a load with the policy set;
// if none was simulated, the bytes that a token reads, which limit the decode rate.
function sidesOf(rows: QualityRow[]): { name: string; type: string; of: (row: QualityRow) => number }[] {
  return [
    { name: "KV retained per request, MB", type: "log", of: (row) => row.kv_bytes_mean / 1e6 },
    rows.some((row) => simulated(row) > 0)
      ? { name: "output tokens/s, simulated", type: "value", of: simulated }
      : { name: "KV read per token, MB", type: "log", of: (row) => (row.kv_read_bytes_mean ?? row.kv_bytes_mean) / 1e6 },
  ];
}

function accuracies(rows: QualityRow[]): EChartsCoreOption {
  // Best first, in the legend and in the tooltip.
  const best = (policy: string) => Math.max(...rows.filter((row) => row.policy === policy).map((row) => row.accuracy));
  const policies = [...new Set(rows.map((row) => row.policy))].sort((a, b) => best(b) - best(a));
  const above = legendLines(policies) * 24 + 30;
  const sides = sidesOf(rows);
  const series = sides.flatMap((side, axis) =>
    policies.flatMap((policy, p) => {
      const colour = colours[p % colours.length] ?? "";
      const own = rows.filter((row) => row.policy === policy && side.of(row) > 0).sort((a, b) => side.of(a) - side.of(b));
      const on = { name: policy, color: colour, xAxisIndex: axis, yAxisIndex: axis };
      // A repeated colour gets another shape and dash.
      const again = Math.floor(p / colours.length);
      const look = { symbol: symbols[again % symbols.length], lineStyle: { type: ["solid", "dashed", "dotted"][again % 3] } };
      return [
        { ...on, ...look, type: "line", symbolSize: 9, data: own.map((row) => [side.of(row), row.accuracy]) },
        {
          ...on,
          type: "custom",
          encode: kEncode,
          renderItem: errorBar(colour),
          data: own.map((row) => [side.of(row), row.accuracy_low ?? row.accuracy, row.accuracy_high ?? row.accuracy]),
        },
      ];
    }),
  );
  return {
    tooltip: { trigger: "item", confine: true },
    legend: { type: "plain", top: 0, itemWidth: 22, data: policies, textStyle: { color: isDark() ? "#dddddd" : "#222222" } },
    grid: [
      { left: 50, right: "54%", top: above, bottom: 45 },
      { left: "54%", right: 20, top: above, bottom: 45 },
    ],
    xAxis: sides.map(({ name, type }, gridIndex) => ({ type, gridIndex, name, nameLocation: "middle", nameGap: 28 })),
    yAxis: sides.map((_, gridIndex) => ({ type: "value", gridIndex, min: 0, max: 1, name: "accuracy" })),
    series,
  };
}

// A policy set with one budget: means over all tasks.
interface Mean {
  name: string;
  right: number;
  kept: number;
  speed: number;
}

function means(rows: QualityRow[], tasks: string[]): Mean[] {
  const sets = [...new Set(rows.map((row) => JSON.stringify([row.policy, row.budget])))];
  return sets.flatMap((set) => {
    const own = rows.filter((row) => JSON.stringify([row.policy, row.budget]) === set);
    const first = own[0];
    if (!first || own.length < tasks.length || first.policy.endsWith("_oracle")) return [];
    const mean = (of: (row: QualityRow) => number) => own.reduce((sum, row) => sum + of(row), 0) / own.length;
    const name = first.policy + (first.budget > 0 ? ` ${first.budget}` : "");
    return [{ name, right: mean((row) => row.accuracy), kept: mean((row) => row.kv_bytes_mean / 1e6), speed: Math.max(...own.map(simulated)) }];
  }).filter((one) => one.speed > 0);
}

function beaten(one: Mean, all: Mean[]): boolean {
  return all.some(
    (other) =>
      other.right >= one.right && other.kept <= one.kept && other.speed >= one.speed &&
      (other.right > one.right || other.kept < one.kept || other.speed > one.speed),
  );
}

// Accuracy against bytes and against throughput. Policy sets that no other beats in all three are coloured and named.
function front(all: Mean[]): EChartsCoreOption {
  const ink = isDark() ? "#dddddd" : "#222222";
  const best = all.filter((one) => !beaten(one, all)).sort((a, b) => a.kept - b.kept);
  const rest = all.filter((one) => beaten(one, all));
  const sides = [
    { name: "KV retained per request, MB", type: "log", of: (one: Mean) => one.kept },
    { name: "output tokens/s, simulated", type: "value", of: (one: Mean) => one.speed },
  ];
  const series = sides.flatMap((side, axis) => {
    const on = { type: "scatter", xAxisIndex: axis, yAxisIndex: axis };
    return [
      { ...on, name: "beaten", color: isDark() ? "#666666" : "#bbbbbb", symbolSize: 6, data: rest.map((one) => ({ name: one.name, value: [side.of(one), one.right] })) },
      ...best.map((one, i) => ({
        ...on,
        name: one.name,
        color: colours[i % colours.length] ?? "",
        symbol: symbols[Math.floor(i / colours.length) % symbols.length],
        symbolSize: 13,
        z: 3,
        data: [{ name: one.name, value: [side.of(one), one.right] }],
      })),
    ];
  });
  return {
    tooltip: { trigger: "item", confine: true },
    legend: { type: "plain", top: 0, itemWidth: 14, data: [...best.map((one) => one.name), "beaten"], textStyle: { color: ink } },
    grid: [
      { left: 50, right: "54%", top: legendLines(best.map((one) => one.name)) * 24 + 30, bottom: 45 },
      { left: "54%", right: 20, top: legendLines(best.map((one) => one.name)) * 24 + 30, bottom: 45 },
    ],
    xAxis: sides.map(({ name, type }, gridIndex) => ({ type, gridIndex, name, nameLocation: "middle", nameGap: 28 })),
    yAxis: sides.map((_, gridIndex) => ({ type: "value", gridIndex, min: 0, max: 1, name: "accuracy" })),
    series,
  };
}

// About nine names fit a line.
function legendLines(policies: string[]): number {
  return Math.ceil(policies.length / 9);
}

// A row per policy and budget, a column per task.
function drawTable(into: HTMLElement, dir: string, rows: QualityRow[], tasks: string[]): void {
  const sets = [...new Set(rows.map((row) => JSON.stringify([row.policy, row.budget])))];
  const speeds = rows.some((row) => simulated(row) > 0);
  const lines = sets.map((set) => {
    const own = rows.filter((row) => JSON.stringify([row.policy, row.budget]) === set);
    const first = own[0];
    const mean = (of: (row: QualityRow) => number) => number(own.reduce((sum, row) => sum + of(row), 0) / own.length / 1e6, 3);
    return [
      first?.policy ?? "",
      first && first.budget > 0 ? number(first.budget) : "all",
      ...tasks.map((task) => said(own.find((row) => row.task === task))),
      mean((row) => row.kv_bytes_mean),
      mean((row) => row.kv_read_bytes_mean ?? row.kv_bytes_mean),
      ...(speeds ? [first && simulated(first) > 0 ? number(simulated(first)) : "–"] : []),
    ];
  });
  const names = ["", "KV entries", ...tasks, "KV retained, MB", "KV read per token, MB", ...(speeds ? ["tokens/s"] : [])];
  table(into, `${dir}: correct answers, with 95 % intervals`, names, lines);
}

function said(row: QualityRow | undefined): string {
  if (!row) return "–";
  const range = row.accuracy_low !== undefined && row.accuracy_high !== undefined;
  return fraction(row.accuracy) + (range ? ` [${(100 * (row.accuracy_low ?? 0)).toFixed(0)} ${(100 * (row.accuracy_high ?? 0)).toFixed(0)}]` : "");
}

export function qualities(all: Evidence<QualityRow[]>[]): void {
  const drawn = all.filter(({ data }) => data.some((row) => !row.refused));
  if (drawn.length === 0) return;
  const into = section("quality", "Quality", "Fraction of correct answers, on real values: by the bytes of KV that a request retains (which limit how many requests fit), and by the throughput of a load that was simulated with the same policies (output tokens/s), or, where none was, the bytes that a token reads (how fast they decode). Bars are 95 % intervals.");
  for (const { dir, data } of drawn) {
    const rows = data.filter((row) => !row.refused);
    const tasks = [...new Set(rows.map((row) => row.task))];
    const all = means(rows, tasks);
    if (all.length > 0) {
      const load = rows.find((row) => row.simulated_load)?.simulated_load ?? "";
      const lines = legendLines(all.filter((one) => !beaten(one, all)).map((one) => one.name));
      plot(into, `${dir}: accuracy, bytes and throughput (${load}), means over ${tasks.length} tasks`, () => front(all), { height: 360 + 24 * lines });
    }
    let task = 0;
    let redraw = () => {};
    choose(into, `${dir}, task:`, tasks, (index) => {
      task = index;
      redraw();
    });
    redraw = plot(into, `${dir}: accuracy by KV bytes`, () => accuracies(rows.filter((row) => row.task === tasks[task])), { height: 340 + 24 * legendLines([...new Set(rows.map((row) => row.policy))]) });
    drawTable(into, dir, rows, tasks);
    const refused = data.filter((row) => row.refused);
    if (refused.length > 0) into.append(Object.assign(document.createElement("p"), { textContent: `${refused.length} rows were refused, e.g. ${refused[0]?.policy}: ${refused[0]?.refused}` }));
  }
}
