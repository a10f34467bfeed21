// The answer of kvtwin plan: the verdict, what each load costs, how near the limits are, and all candidates.

import type { EChartsCoreOption } from "echarts/core";

import type { Evidence, Plan, PlanCandidate } from "./data.js";
import { element, number, plot, section, table } from "./page.js";

export function plans(given: Evidence<Plan>[]): void {
  given.forEach(({ dir, data }, p) => {
    const into = section(`plan${p}`, given.length > 1 ? `Plan ${p + 1}` : "Plan", data.answer[0] ?? "");
    const list = element("ul");
    for (const sentence of data.answer.slice(1)) list.append(element("li", sentence));
    into.append(list);
    const [head, ...rows] = data.table;
    table(into, `Candidates, best first (${dir})`, head ?? [], rows);
    if (data.candidates.some((one) => (one.up_to ?? 0) > 0)) plot(into, "Cost over load: the cheapest candidate for each load", () => costs(data), 320);
    if ((data.uses ?? []).length > 0) plot(into, `Limits of ${data.best ?? "the best candidate"} at ${data.need}: how much of each is used`, () => limits(data), 60 + 28 * (data.uses ?? []).length);
  });
}

const word = (field: string) => field.split(".").at(-1) ?? field;

// A step of the curve ends at the largest load that its candidate holds; the next one is dearer.
function stairs(plan: Plan): number[][] {
  let from = 0;
  return (plan.cost_curve ?? []).flatMap((step) => {
    const ends = [[from, step.usd_per_hour], [step.up_to, step.usd_per_hour]];
    from = step.up_to;
    return ends;
  });
}

function costs(plan: Plan): EChartsCoreOption {
  const held = plan.candidates.filter((one) => !one.refused && (one.up_to ?? 0) > 0);
  const point = (one: PlanCandidate) => ({ value: [one.up_to ?? 0, one.usd_per_hour], name: one.name, breaks: one.breaks ?? "" });
  const high = Math.max(...held.map((one) => one.usd_per_hour));
  return {
    tooltip: {
      trigger: "item",
      confine: true,
      formatter: (at: { name: string; seriesName: string; data: { value?: number[]; breaks?: string } }) => at.data.value ? `${at.name}<br>${number(at.data.value[1])} $/h, holds ${number(at.data.value[0])}<br>${at.data.breaks ?? ""}` : at.seriesName,
    },
    xAxis: { type: "value", min: 0, name: `${word(plan.load)} held`, nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "value", min: 0, name: "$/h" },
    series: [
      { name: "candidates that hold", type: "scatter", symbolSize: 10, data: held.filter((one) => one.holds).map(point) },
      { name: "that do not", type: "scatter", symbol: "diamond", symbolSize: 10, data: held.filter((one) => !one.holds).map(point) },
      { name: "cheapest", type: "line", symbol: "none", data: stairs(plan) },
      { name: "needed", type: "line", symbol: "none", lineStyle: { type: "dashed" }, data: [[plan.need, 0], [plan.need, high]] },
    ],
  };
}

function limits(plan: Plan): EChartsCoreOption {
  const uses = [...(plan.uses ?? [])].reverse();
  return {
    grid: { left: 150, right: 60, top: 10, bottom: 30 },
    legend: { show: false },
    tooltip: { trigger: "item", confine: true, formatter: (at: { name: string; value: number }) => `${at.name}: ${at.value.toFixed(0)} %` },
    xAxis: { type: "value", min: 0, max: (range: { max: number }) => Math.max(100, range.max), axisLabel: { formatter: "{value} %" } },
    yAxis: { type: "category", data: uses.map((one) => one.limit) },
    series: [{ name: "used", type: "bar", data: uses.map((one) => 100 * one.use), label: { show: true, position: "right", formatter: (at: { value: number }) => `${at.value.toFixed(0)} %` } }],
  };
}
