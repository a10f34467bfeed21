// Predicted against measured (kvtwin validate).

import type { EChartsCoreOption } from "echarts/core";

import type { Evidence, Figure, Statistics, Validation, ValidatedScenario } from "./data.js";
import { errorBar, kEncode } from "./error_bars.js";
import { choose, colours, number, plot, section, table } from "./page.js";

const percent = (value: number | null) => (value === null ? "–" : `${value.toFixed(2)}\u00a0%`);
const statistics = (s: Statistics | undefined) => (s && s.count > 0 ? [number(s.count), percent(s.median_percent), percent(s.p95_percent), percent(s.mean_percent)] : ["0", "–", "–", "–"]);

// Figures with a relative difference: percent of the measured value.
function relative(scenario: ValidatedScenario): Figure[] {
  return scenario.figures.filter((one) => !one.absolute && one.real > 0 && one.difference !== null);
}

// Distinguished by colour and shape.
const kVerdicts = [
  { verdict: "within", label: "simulated: within", colour: 0, symbol: "circle" },
  { verdict: "known", label: "simulated: deviates, explained", colour: 1, symbol: "triangle" },
  { verdict: "outside", label: "simulated: outside", colour: 3, symbol: "diamond" },
];
// Points beyond this limit are drawn at the edge with their value, so that small differences stay visible.
const kEdge = 40;

interface Place {
  name: string;  // on the axis
  figure: Figure;
}

function differences(places: Place[]): EChartsCoreOption {
  const inside = (value: number) => Math.max(-kEdge, Math.min(kEdge, value));
  const spread = (one: Figure, end: number) => inside((100 * (end - one.real)) / one.real);
  return {
    grid: { left: 64, right: 24, top: 40, bottom: 96 },
    tooltip: { trigger: "item", confine: true, formatter: (at: { dataIndex: number; seriesName: string; data: { place?: Place } }) => at.data.place ? tip(at.data.place) : at.seriesName },
    xAxis: { type: "category", data: places.map(({ name }) => name), axisLabel: { rotate: 35, interval: 0 }, axisLine: { onZero: false } },
    yAxis: { type: "value", name: "% of measured", min: (range: { min: number }) => tens(range.min), max: (range: { max: number }) => tens(range.max) },
    series: [
      {
        name: "limit",
        type: "custom",
        itemStyle: { color: colours[2] },
        encode: kEncode,
        renderItem: errorBar(colours[2] ?? ""),
        data: places.map(({ figure }, i) => [i, -figure.tolerance, figure.tolerance]),
      },
      {
        name: "spread of the real runs",
        type: "custom",
        itemStyle: { color: colours[6] },
        encode: kEncode,
        renderItem: errorBar(colours[6] ?? "", 5),
        data: places.map(({ figure }, i) => [i, spread(figure, figure.real_min), spread(figure, figure.real_max)]),
      },
      ...kVerdicts.map(({ verdict, label, colour, symbol }) => ({
        name: label,
        type: "scatter",
        symbol,
        symbolSize: 11,
        itemStyle: { color: colours[colour] },
        label: { show: true, position: "right", color: "inherit", formatter: (at: { data: { place: Place } }) => (Math.abs(at.data.place.figure.difference ?? 0) > kEdge ? `${number(at.data.place.figure.difference ?? 0, 3)} %` : "") },
        data: places
          .map((place, i) => ({ value: [i, inside(place.figure.difference ?? 0)], place }))
          .filter(({ place }) => place.figure.verdict === verdict),
      })).filter((series) => series.data.length > 0),
    ],
  };
}

// The next multiple of ten, with some room for a mark.
function tens(value: number): number {
  return Math.sign(value) * 10 * Math.ceil((Math.abs(value) + 1) / 10);
}

function tip({ name, figure }: Place): string {
  return `${name}: ${percent(figure.difference)}, limit ${number(figure.tolerance)} %<br>simulated ${number(figure.simulated)}, measured ${number(figure.real)} ${figure.unit}`;
}

// One figure of all scenarios, then all figures of one.
function drawDifferences(into: HTMLElement, data: Validation): void {
  const scenarios = data.scenarios.filter((one) => relative(one).length > 0);
  const names = [...new Set(scenarios.flatMap((one) => relative(one).map((figure) => figure.name)))];
  if (names.length === 0) return;
  let name = names[0] ?? "";
  let redraw = () => {};
  choose(into, "figure:", names, (index) => {
    name = names[index] ?? name;
    redraw();
  });
  redraw = plot(into, "One figure of all scenarios: simulated and measured", () =>
    differences(scenarios.flatMap((one) => relative(one).filter((figure) => figure.name === name).map((figure) => ({ name: one.scenario, figure })))), { height: 400 });
  let scenario = scenarios[0];
  let again = () => {};
  choose(into, "scenario:", scenarios.map((one) => one.scenario), (index) => {
    scenario = scenarios[index];
    again();
  });
  again = plot(into, "All figures of one scenario: simulated and measured", () =>
    differences(scenario ? relative(scenario).map((figure) => ({ name: figure.name, figure })) : []), { height: 400 });
}

function verdictOf(scenario: ValidatedScenario): string {
  const outside = scenario.figures.filter((one) => one.verdict === "outside").length;
  const known = scenario.figures.filter((one) => one.verdict === "known").length;
  if (outside > 0) return `${outside} outside`;
  return known > 0 ? `${known} deviate, explained` : "all within";
}

export function validations(all: Evidence<Validation>[]): void {
  if (all.length === 0) return;
  const into = section("validation", "Validation", "The same scenarios, simulated and run on hardware.");
  for (const { dir, data } of all) {
    const rows = data.scenarios.map((one) => [
      one.scenario,
      verdictOf(one),
      `${(one.replayed ?? []).filter((run) => run.same).length} of ${(one.replayed ?? []).length}`,
      ...statistics(one.open_loop.steps),
      percent(one.open_loop.total_percent),
    ]);
    table(into, `${dir}: ${data.profile || "roofline"}; open loop prices each recorded step`, ["", "limits", "runs replayed with the same decisions", "steps", "median error", "P95", "mean", "all together"], rows);
    drawDifferences(into, data);
    for (const scenario of data.scenarios) {
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
      table(details, `${scenario.scenario}: all figures`, ["", "simulated", "measured", "of the real runs", "difference", "limit", ""], figures);
      into.append(details);
    }
  }
}
