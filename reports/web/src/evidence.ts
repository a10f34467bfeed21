// Sections about trust: predicted against measured (kvtwin validate), accuracy against bytes (kvtwin evaluate).

import type { EChartsCoreOption } from "echarts/core";

import type { Evidence, Figure, QualityRow, Statistics, Validation, ValidatedScenario } from "./data.js";
import { choose, colours, number, plot, section, table } from "./page.js";

interface Api {
  value: (dimension: number) => number;
  coord: (point: (number | string)[]) => number[];
}

// Both ends count for the axis.
const kEncode = { x: 0, y: [1, 2] };

// A vertical line from the second to the third dimension at the first, with ends: an error bar.
function errorBar(colour: string, width = 2): (params: unknown, api: Api) => object {
  return (_, api) => {
    const low = api.coord([api.value(0), api.value(1)]);
    const high = api.coord([api.value(0), api.value(2)]);
    const x = low[0] ?? 0;
    const line = (x1: number, y1: number, x2: number, y2: number) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: width } });
    return {
      type: "group",
      children: [
        line(x, low[1] ?? 0, x, high[1] ?? 0),
        line(x - 5, low[1] ?? 0, x + 5, low[1] ?? 0),
        line(x - 5, high[1] ?? 0, x + 5, high[1] ?? 0),
      ],
    };
  };
}

const percent = (value: number | null) => (value === null ? "–" : `${value.toFixed(2)} %`);
const statistics = (s: Statistics | undefined) => (s && s.count > 0 ? [number(s.count), percent(s.median_percent), percent(s.p95_percent), percent(s.mean_percent)] : ["0", "–", "–", "–"]);

// Figures whose difference is relative: of what was measured, in percent.
function relative(scenario: ValidatedScenario): Figure[] {
  return scenario.figures.filter((one) => !one.absolute && one.real > 0 && one.difference !== null);
}

function differences(scenario: ValidatedScenario): EChartsCoreOption {
  const figures = relative(scenario);
  return {
    grid: { left: 64, right: 24, top: 40, bottom: 110 },
    tooltip: { trigger: "item", confine: true },
    xAxis: { type: "category", data: figures.map((one) => one.name), axisLabel: { rotate: 35 } },
    yAxis: { type: "value", name: "% of measured" },
    series: [
      {
        name: "tolerance",
        type: "custom",
        itemStyle: { color: colours[2] },
        encode: kEncode,
        renderItem: errorBar(colours[2] ?? ""),
        data: figures.map((one, i) => [i, -one.tolerance, one.tolerance]),
      },
      {
        name: "spread of the real runs",
        type: "custom",
        itemStyle: { color: colours[1] },
        encode: kEncode,
        renderItem: errorBar(colours[1] ?? "", 5),
        data: figures.map((one, i) => [i, (100 * (one.real_min - one.real)) / one.real, (100 * (one.real_max - one.real)) / one.real]),
      },
      {
        name: "simulated",
        type: "scatter",
        symbolSize: 11,
        data: figures.map((one, i) => ({ value: [i, one.difference], itemStyle: { color: one.verdict === "outside" ? colours[3] : colours[0] } })),
      },
    ],
  };
}

export function validations(all: Evidence<Validation>[]): void {
  if (all.length === 0) return;
  const into = section("validation", "Validation", "The same scenarios, simulated and for real: how far a prediction can be trusted.");
  for (const { dir, data } of all) {
    const rows = data.scenarios.map((one) => [
      one.scenario,
      one.good ? "within" : "outside",
      `${(one.replayed ?? []).filter((run) => run.same).length} of ${(one.replayed ?? []).length}`,
      ...statistics(one.open_loop.steps),
      percent(one.open_loop.total_percent),
    ]);
    table(into, `${dir}: ${data.profile || "roofline"}; open loop prices each recorded step`, ["", "limits", "runs replayed with the same decisions", "steps", "median error", "P95", "mean", "all together"], rows);
    for (const scenario of data.scenarios) {
      if (relative(scenario).length > 0) plot(into, `${scenario.scenario}: simulated beside measured`, () => differences(scenario), 340);
      const figures = scenario.figures.map((one) => [
        one.unit ? `${one.name}, ${one.unit}` : one.name,
        number(one.simulated),
        number(one.real),
        `${number(one.real_min)} to ${number(one.real_max)}`,
        one.difference === null ? "–" : one.absolute ? number(one.difference) : percent(one.difference),
        number(one.tolerance),
        one.known ? `${one.verdict}: ${one.known}` : one.verdict,
      ]);
      const details = document.createElement("details");
      details.append(Object.assign(document.createElement("summary"), { textContent: `${scenario.scenario}: all figures` }));
      table(details, `${scenario.scenario}: all figures`, ["", "simulated", "measured", "of the real runs", "differs", "limit", ""], figures);
      into.append(details);
    }
  }
}

// Left: what is kept, which is how many calls fit. Right: what a token reads, which is how fast they decode.
function accuracies(rows: QualityRow[]): EChartsCoreOption {
  const policies = [...new Set(rows.map((row) => row.policy))];
  const sides = [
    { name: "KV kept for a call, MB", of: (row: QualityRow) => row.kv_bytes_mean / 1e6 },
    { name: "KV read for a token, MB", of: (row: QualityRow) => (row.kv_read_bytes_mean ?? row.kv_bytes_mean) / 1e6 },
  ];
  const series = sides.flatMap((side, axis) =>
    policies.flatMap((policy, p) => {
      const colour = colours[p % colours.length] ?? "";
      const own = rows.filter((row) => row.policy === policy).sort((a, b) => side.of(a) - side.of(b));
      const on = { name: policy, color: colour, xAxisIndex: axis, yAxisIndex: axis };
      return [
        { ...on, type: "line", symbolSize: 8, data: own.map((row) => [side.of(row), row.accuracy]) },
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
    legend: { type: "scroll", top: 0, data: policies },
    grid: [
      { left: 50, right: "54%", top: 50, bottom: 45 },
      { left: "54%", right: 20, top: 50, bottom: 45 },
    ],
    xAxis: sides.map(({ name }, gridIndex) => ({ type: "log", gridIndex, name, nameLocation: "middle", nameGap: 28 })),
    yAxis: sides.map((_, gridIndex) => ({ type: "value", gridIndex, min: 0, max: 1, name: "accuracy" })),
    series,
  };
}

export function qualities(all: Evidence<QualityRow[]>[]): void {
  const drawn = all.filter(({ data }) => data.some((row) => !row.refused));
  if (drawn.length === 0) return;
  const into = section("quality", "Quality", "Share of right answers, on real values: by the bytes of KV that a call keeps (how many calls fit) and by those that a token reads (how fast they decode). Bars are 95 % intervals.");
  for (const { dir, data } of drawn) {
    const rows = data.filter((row) => !row.refused);
    const tasks = [...new Set(rows.map((row) => row.task))];
    let task = 0;
    let redraw = () => {};
    choose(into, `${dir}, task:`, tasks, (index) => {
      task = index;
      redraw();
    });
    redraw = plot(into, `${dir}: accuracy by KV bytes`, () => accuracies(rows.filter((row) => row.task === tasks[task])), 340);
    table(
      into,
      `${dir}: all tasks`,
      ["", "budget", "task", "accuracy", "KV MB", "KV MB read", "share of tokens with a cell left"],
      rows.map((row) => [row.policy, number(row.budget), row.task, number(row.accuracy), number(row.kv_bytes_mean / 1e6), number((row.kv_read_bytes_mean ?? row.kv_bytes_mean) / 1e6), number(row.kv_share)]),
    );
    const refused = data.filter((row) => row.refused);
    if (refused.length > 0) into.append(Object.assign(document.createElement("p"), { textContent: `${refused.length} cells were refused, e.g. ${refused[0]?.policy}: ${refused[0]?.refused}` }));
  }
}
