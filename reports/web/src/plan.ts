// The answer of kvtwin plan: the verdict, what each load costs, how near the limits are, and all candidates.

import type { EChartsCoreOption } from "echarts/core";

import type { Evidence, Plan, PlanCandidate } from "./data.js";
import { colours, columns, element, isDark, number, plot, section, table } from "./page.js";
import { quantity } from "./units.js";

export function plans(given: Evidence<Plan>[]): void {
  given.forEach(({ dir, data }, p) => {
    const into = section(`plan${p}`, given.length > 1 ? `Plan ${p + 1}` : "Plan", "");
    into.append(cards(data));
    into.append(element("p", data.answer[0] ?? "", "limits"));
    const list = element("ul");
    const notes = data.answer.filter((sentence) => sentence.startsWith(kNote));
    for (const sentence of data.answer.slice(1)) if (!notes.includes(sentence)) list.append(element("li", sentence));
    into.append(list);
    for (const note of notes) into.append(element("p", note.slice(kNote.length), "note"));
    const grid = columns(into);
    const name = given.length > 1 ? `Plan ${p + 1}: ` : "";
    const uses = data.uses ?? [];
    if (data.candidates.some((one) => (one.up_to ?? 0) > 0)) plot(grid, `${name}Cost over load, $ per hour: the cheapest candidate for each load, and the front`, () => costs(data), { height: 300 });
    if (uses.length > 0) plot(grid, `${name}Limits of ${data.best ?? "the best candidate"} at ${data.need}: how much of each is used`, () => limits(data), { height: Math.max(120, 40 + 34 * uses.length) });
    const [head, ...rows] = data.table;
    table(into, `${judged(data) ? "Candidates, best first" : "Candidates, not judged"} (${dir})`, head ?? [], rows).classList.add("stacks");
  });
}

const kNote = "Note: ";

function card(label: string, value: string, verdict = "", kept?: boolean): HTMLElement {
  const out = element("div", "", kept === undefined ? "card" : kept ? "card kept" : "card broken");
  const line = element("div", "", "value");
  line.append(element("b", value));
  if (verdict) line.append(element("span", verdict, "verdict"));
  out.append(element("h3", label), line);
  return out;
}

// Plans of earlier versions do not state it.
function judged(plan: Plan): boolean {
  return !(plan.not_judged ?? (plan.candidates.every((one) => one.refused) && plan.candidates.some((one) => one.not_judged)));
}

// The best candidate: what it is, what it costs, what it holds, and the SLOs at the load that is needed.
function cards(plan: Plan): HTMLElement {
  const out = element("div", "", "cards");
  const best = plan.candidates.find((one) => one.name === plan.best);
  if (!best) {
    out.append(judged(plan) ? card("Verdict", "none holds", `${number(plan.need)} needed`, false) : card("Verdict", "not judged", "no candidate has measured kernels"));
    return out;
  }
  const holds = plan.holds_up_to ?? best.up_to ?? 0;
  out.append(card("Best candidate", shortName(best.name), gpusText(best)));
  if (best.price_known === false) out.append(card("$ per hour", "not known", "kvtwin plan --price=NODE=USD"));
  else out.append(card("$ per hour", best.usd_per_hour.toFixed(2), basisOf(best)),
    card("$ per month", number(Math.round(best.usd_per_hour * kHoursPerMonth)), `${kHoursPerMonth} h ${basisOf(best)}`));
  if ((best.usd_per_million_output_tokens ?? 0) > 0) out.append(card("$ per million output tokens", number(best.usd_per_million_output_tokens, 3)));
  out.append(card(`holds ${word(plan.load)}`, `${plan.holds_more ? "≥ " : ""}${number(holds)}`, `${number(plan.need)} needed${plan.holds_more ? "; no more was asked" : ""}`, holds >= plan.need));
  for (const [text, { value, use }] of Object.entries(best.slos ?? {})) {
    const name = text.replace(/[<>].*/, "");
    const latency = /^(ttft|tpot|itl|e2e|session)/.test(name);
    out.append(card(`${name} at ${number(plan.need)}`, quantity(value, latency ? "ms" : name === "goodput" ? "fraction" : ""), `${use <= 1 ? "✓" : "✗"} ${text}, ${(100 * use).toFixed(0)}\u00a0% used`, use <= 1));
  }
  return out;
}

const kHoursPerMonth = 730;

function basisOf(one: PlanCandidate): string {
  return one.price_assumed ? "(assumed)" : one.price_given ? "(given)" : "";
}

function gpusText(one: PlanCandidate): string {
  const nodes = one.nodes ?? 0;
  if (one.gpus === undefined) return "";
  const used = `${number(one.gpus)} ${one.gpus === 1 ? "GPU" : "GPUs"}`;
  if (nodes <= 1 && (one.gpus_of_nodes ?? 0) <= one.gpus) return used;
  return `${used} in use, of ${nodes} ${nodes === 1 ? "node" : "nodes"} with ${number(one.gpus_of_nodes)}`;
}

// "node=h200 count=2".
const shortName = (name: string) => name.replace(/[\w.]+\.(\w+=)/g, "$1");

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
  const point = (one: PlanCandidate) => ({ value: [one.up_to ?? 0, one.usd_per_hour], name: one.name, held: one.up_to_text, breaks: one.breaks ?? "" });
  const named = { show: true, position: "left", offset: [4, -10], color: isDark() ? "#d5d8dd" : "#22262b", formatter: (at: { name: string }) => (at.name === plan.best ? "★ best: " : "") + shortName(at.name) };
  const front = { type: "scatter", symbol: "diamond", symbolSize: 14, color: colours[0], label: named };
  const series = [
    // The best one's name is never hidden by another's.
    { ...front, name: "best", z: 4, symbolSize: 18, data: held.filter((one) => one.name === plan.best).map(point) },
    { ...front, name: "on the front", labelLayout: { hideOverlap: true }, z: 3, data: held.filter((one) => one.on_front && one.name !== plan.best).map(point) },
    { name: "beaten", type: "scatter", symbolSize: 9, color: colours[6], data: held.filter((one) => !one.on_front && one.holds).map(point) },
    { name: "do not hold the need", type: "scatter", symbol: "triangle", symbolSize: 10, color: colours[3], data: held.filter((one) => !one.on_front && !one.holds).map(point) },
  ].filter((one) => one.data.length > 0);
  return {
    tooltip: {
      trigger: "item",
      confine: true,
      formatter: (at: { name: string; seriesName: string; data: { value?: number[]; held?: string; breaks?: string } }) => at.data.value ? [at.name, `${number(at.data.value[1])} $/h, holds ${at.data.held ?? number(at.data.value[0])}`, at.data.breaks ?? ""].map((text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;")).join("<br>") : at.seriesName,
    },
    grid: { left: 8, right: 24, top: 34, bottom: 30, containLabel: true },
    xAxis: { type: "value", min: 0, max: (range: { max: number }) => Math.ceil(range.max * 1.05), name: `${word(plan.load)} held`, nameLocation: "middle", nameGap: 26 },
    yAxis: { type: "value", min: 0, max: (range: { max: number }) => nice(1.15 * range.max) },
    series: [
      ...series,
      { name: "cheapest", type: "line", symbol: "none", color: colours[2], areaStyle: { opacity: 0.08 }, data: stairs(plan) },
      {
        name: "need", type: "line", data: [[plan.need, 0]], symbol: "none", color: colours[1],
        markLine: { symbol: "none", silent: true, lineStyle: { type: "dashed", width: 2, color: colours[1] }, label: { formatter: `need ${number(plan.need)}`, position: "insideEndTop", rotate: 0, distance: 8, color: "inherit" }, data: [{ xAxis: plan.need }] },
      },
    ],
  };
}

// At most two digits, so that the axis ends at a round number.
function nice(value: number): number {
  const digit = Math.pow(10, Math.floor(Math.log10(value)) - 1);
  return Math.ceil(value / (5 * digit)) * 5 * digit;
}

function limits(plan: Plan): EChartsCoreOption {
  const uses = [...(plan.uses ?? [])].reverse();
  return {
    grid: { left: 16, right: 48, top: 10, bottom: 4, containLabel: true },
    legend: { show: false },
    tooltip: { trigger: "item", confine: true, formatter: (at: { name: string; value: number }) => `${at.name}: ${at.value.toFixed(0)} %` },
    xAxis: { type: "value", min: 0, max: (range: { max: number }) => Math.max(100, range.max), axisLabel: { formatter: "{value} %" } },
    yAxis: { type: "category", data: uses.map((one) => one.limit) },
    series: [{ name: "used", type: "bar", barMaxWidth: 22, data: uses.map((one) => ({ value: 100 * one.use, itemStyle: { color: one.use > 1 ? colours[3] : colours[0] } })), label: { show: true, position: "right", color: isDark() ? "#d5d8dd" : "#22262b", formatter: (at: { value: number }) => `${at.value.toFixed(0)} %` } }],
  };
}
