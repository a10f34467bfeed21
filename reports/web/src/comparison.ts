// Comparison of several runs: differences between their settings, and between their results.

import type { EChartsCoreOption } from "echarts/core";
import type { Run } from "./data.js";
import { colours, number, plot, section, symbols, table } from "./page.js";

// Less is better for all but the first.
const kCompared: [string, string][] = [
  ["output_tokens_per_s", "output tokens per second"],
  ["ttft_p50_ms", "TTFT median"],
  ["ttft_p99_ms", "TTFT P99"],
  ["tpot_p50_ms", "TPOT median"],
  ["tpot_p99_ms", "TPOT P99"],
  ["e2e_p99_ms", "latency P99"],
  ["session_served_mean_ms", "session without tools and thinking, mean"],
  ["usd_per_million_output_tokens", "price per million output tokens"],
];

export function comparison(runs: Run[]): void {
  if (runs.length < 2) return;
  const first = runs[0];
  if (!first) return;
  const into = section("comparison", "Comparison", "Settings that differ between the scenarios, and the results.");
  const settings = runs.map((run) => flatten(run.scenario));
  const names = [...new Set(settings.flatMap((one) => [...one.keys()]))].filter((name) => {
    const said = new Set(settings.map((one) => one.get(name)));
    return said.size > 1 && !kNotSettings.has(name);
  });
  if (names.length > 0) {
    table(into, "Settings that differ", ["", ...runs.map((run) => run.name)], names.map((name) => [name, ...settings.map((one) => short(one.get(name)))]));
  }
  const shown = kCompared.filter(([key]) => runs.filter((run) => Number(run.summary[key]) > 0).length > 1 && Number(first.summary[key]) > 0);
  if (shown.length === 0) return;
  plot(into, `Relative to ${first.name}: more tokens per second are better, less of all others`, () => dots(runs, first, shown), { height: 60 + 28 * shown.length });
}

// The end of a path is the most specific part.
function short(value: string | undefined): string {
  if (value === undefined) return "–";
  if (value === "") return "none";
  return value.length > kLongest ? `…${value.slice(-kLongest)}` : value;
}

const kLongest = 28;
const kNotSettings = new Set(["name", "description"]);

function dots(runs: Run[], first: Run, shown: [string, string][]): EChartsCoreOption {
  return {
    grid: { left: 8, right: 40, top: 28, bottom: 4, containLabel: true },
    tooltip: { trigger: "item", confine: true, formatter: (at: { seriesName: string; data: number[] }) => `${at.seriesName}: ${shown[at.data[1] ?? 0]?.[1]}, ${number(at.data[0], 3)} times` },
    xAxis: { type: "log", min: (range: { min: number }) => Math.min(0.8, 0.9 * range.min), max: (range: { max: number }) => Math.max(1.25, 1.1 * range.max), axisLabel: { formatter: (at: number) => `${number(at, 3)}×` } },
    yAxis: { type: "category", inverse: true, data: shown.map(([, label]) => label), splitLine: { show: true } },
    series: runs.map((run, r) => ({
      name: run.name,
      type: "scatter",
      symbol: symbols[r % symbols.length],
      symbolSize: 12,
      itemStyle: { color: colours[r % colours.length] },
      data: shown
        .map(([key], i) => [Number(run.summary[key]) / Number(first.summary[key]), i])
        .filter(([times]) => (times ?? 0) > 0),
    })),
  };
}

// Maps "limits.requests_max" to "256" for a resolved scenario, which has one field or brace per line. Repeated fields
// become a list.
function flatten(textproto: string): Map<string, string> {
  const out = new Map<string, string>();
  const path: string[] = [];
  for (const line of textproto.split("\n")) {
    const text = line.trim();
    if (text === "" || text.startsWith("#")) continue;
    const open = /^([\w.]+)\s*\{$/.exec(text);
    const field = /^(\w+):\s*(.*)$/.exec(text);
    if (open) path.push(open[1] ?? "");
    else if (text === "}") path.pop();
    else if (field) {
      const name = [...path, field[1] ?? ""].join(".");
      const value = (field[2] ?? "").replace(/^"(.*)"$/, "$1");
      out.set(name, out.has(name) ? `${out.get(name)}, ${value}` : value);
    }
  }
  return out;
}
