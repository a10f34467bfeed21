// The answer of a sweep: the best point, or, where an axis is the load, the highest load that keeps the SLOs; and what
// the points do not show.

import type { Slo, Sweep, SweepPoint } from "./data.js";
import { keepsAll } from "./figures.js";
import { element, number, table } from "./page.js";

// The values of an axis, in order.
export function valuesOf(sweep: Sweep, axis: number): string[] {
  const values = [...new Set(sweep.points.map((point) => point.values[axis] ?? ""))];
  if (values.every((text) => text !== "" && Number.isFinite(Number(text)))) values.sort((a, b) => Number(a) - Number(b));
  return values;
}

export function value(point: SweepPoint, name: string): number {
  return Number(point.metrics[name] ?? NaN);
}

export function label(sweep: Sweep, point: SweepPoint): string {
  return sweep.axes.map((name, i) => `${name}=${point.values[i] ?? ""}`).join(" ");
}

// Values of points that differ by less count as equal.
const kEqual = 0.01;

export interface Best {
  point: SweepPoint;
  sentence: string;
  mark: string;  // in plots
}

// Axes that are the load: more is a harder question, not a better choice. Value: 1 if more is more load.
const kLoads: Record<string, number> = { "replay.population": 1, "replay.sessions_per_s": 1, "replay.arrival_scale": -1 };

// The load among the axes that vary; -1: there is none.
export function loadAxis(sweep: Sweep): number {
  return sweep.axes.findIndex((name, axis) => name in kLoads && valuesOf(sweep, axis).length > 1);
}

// One choice of the other axes: the highest load that keeps all SLOs, where all lower ones keep them too.
interface Capacity {
  choice: string;
  most?: SweepPoint;  // absent: the lowest load breaks one
  open: boolean;  // no load of the sweep breaks one
}

function capacities(sweep: Sweep, load: number): Capacity[] {
  const sign = kLoads[sweep.axes[load] ?? ""] ?? 1;
  const groups = new Map<string, SweepPoint[]>();
  for (const point of sweep.points) {
    const choice = sweep.axes.map((name, i) => `${name}=${point.values[i] ?? ""}`).filter((_, i) => i !== load && valuesOf(sweep, i).length > 1).join(" ") || "this scenario";
    groups.set(choice, [...(groups.get(choice) ?? []), point]);
  }
  return [...groups].map(([choice, points]) => {
    points.sort((a, b) => sign * (Number(a.values[load]) - Number(b.values[load])));
    const broken = points.findIndex((point) => keepsAll(point.slos) !== true);
    return { choice, most: broken < 0 ? points.at(-1) : points[broken - 1], open: broken < 0 };
  });
}

// The choices with the highest load first.
export function ofLoad(sweep: Sweep, slos: Slo[], load: number): { best?: Best; rows: Capacity[] } {
  if (slos.length === 0) return { rows: [] };
  const sign = kLoads[sweep.axes[load] ?? ""] ?? 1;
  const held = ({ most }: Capacity) => (most ? sign * Number(most.values[load]) : -Infinity);
  const rows = capacities(sweep, load).sort((a, b) => held(b) - held(a) || (price(a.most) - price(b.most) || 0));
  const [first] = rows;
  const texts = slos.map((slo) => slo.text).join(" and ");
  if (!first?.most) {
    const nearest = bestOf(sweep, slos);
    if (nearest?.mark === "best") return { best: { ...nearest, mark: "keeps the SLOs", sentence: `No choice keeps ${texts} at its least ${sweep.axes[load]}; ${label(sweep, nearest.point)} keeps it.` }, rows: [] };
    return { best: nearest, rows: [] };
  }
  const sentence = `The highest ${sweep.axes[load]} that keeps ${texts}: ${first.open ? "at least " : ""}${first.most.values[load]} with ${first.choice}${rows.length > 1 ? "; the table has the other choices" : ""}.`;
  return { best: { point: first.most, sentence, mark: "highest load" }, rows: rows.length > 1 ? rows : [] };
}

function price(point: SweepPoint | undefined): number {
  return point ? value(point, "usd_per_hour") : Infinity;
}

// Cheapest of the points that keep all SLOs (or with the most tokens per second where prices are not known); of nearly
// equal ones, that with the lowest TTFT.
export function bestOf(sweep: Sweep, slos: Slo[]): Best | undefined {
  const finished = sweep.points.filter((point) => Number(point.metrics["requests_finished"] ?? 0) > 0);
  const kept = slos.length > 0 ? finished.filter((point) => keepsAll(point.slos) === true) : finished;
  const texts = slos.map((slo) => slo.text).join(" and ");
  if (kept.length === 0) {
    const worst = (point: SweepPoint) => Math.max(0, ...point.slos.map((value) => value?.[1] ?? Infinity));
    const [nearest] = [...finished].sort((a, b) => worst(a) - worst(b));
    if (!nearest) return undefined;
    return { point: nearest, sentence: `No point keeps ${texts}. Nearest: ${label(sweep, nearest)}, with ${(100 * worst(nearest)).toFixed(0)} % of a limit used.`, mark: "nearest" };
  }
  const priced = kept.every((point) => value(point, "usd_per_million_output_tokens") > 0);
  const by = priced ? "usd_per_million_output_tokens" : "output_tokens_per_s";
  const sign = priced ? 1 : -1;
  const top = Math.min(...kept.map((point) => sign * value(point, by)));
  const near = kept.filter((point) => sign * value(point, by) - top <= kEqual * Math.abs(top));
  const [point] = [...near].sort((a, b) => value(a, "ttft_p99_ms") - value(b, "ttft_p99_ms"));
  if (!point) return undefined;
  const rule = `${priced ? "cheapest output tokens" : "most output tokens per second"} within 1 %, then the lowest TTFT p99`;
  const among = slos.length > 0 ? `, among the ${kept.length} of ${sweep.points.length} points that keep ${texts}` : "";
  return { point, sentence: `Best: ${label(sweep, point)} (${rule}${among}).`, mark: "best" };
}

export function capacityTable(into: HTMLElement, sweep: Sweep, load: number, rows: Capacity[]): void {
  const figure = (point: SweepPoint | undefined, name: string) => (point && Number.isFinite(value(point, name)) ? number(value(point, name), 3) : "–");
  const lowest = (kLoads[sweep.axes[load] ?? ""] ?? 1) > 0 ? valuesOf(sweep, load)[0] : valuesOf(sweep, load).at(-1);
  table(into, "Highest load that keeps the SLOs", ["choice", sweep.axes[load] ?? "", "$ per hour", "$ per million output tokens"], rows.slice(0, kChoices).map(({ choice, most, open }) => [
    choice,
    most ? `${open ? "at least " : ""}${most.values[load]}` : `none: ${lowest} breaks one`,
    figure(most, "usd_per_hour"),
    figure(most, "usd_per_million_output_tokens"),
  ])).classList.add("stacks");
}

// As scenarios/output/sessions_in_flight.h.
const kInFlightEnough = 0.8;

// Notes points whose load was mostly lower than their population.
export function idle(into: HTMLElement, sweep: Sweep): void {
  const axis = sweep.axes.indexOf("replay.population");
  const few = sweep.points.filter((point) => value(point, "sessions_in_flight") > 0 && value(point, "sessions_in_flight") < kInFlightEnough * Number(point.values[axis]));
  if (few.length === 0) return;
  into.append(element("p", `In ${number(few.length)} of ${number(sweep.points.length)} points on average less than ${100 * kInFlightEnough}\u00a0% of the population was in flight, because the trace has too few sessions: prices and throughput are of that load; --set=replay.replicas=N adds sessions`, "note"));
}

const kChoices = 20;
const kFailures = 5;

// Points without a result, and why.
export function failures(into: HTMLElement, sweep: Sweep): void {
  const all = sweep.failures ?? [];
  if (all.length === 0) return;
  const failed = all.reduce((sum, one) => sum + one.points, 0);
  const points = failed + sweep.points.length;
  into.append(element("p", `${number(failed)} of ${number(points)} points failed and are not shown:`, "note"));
  const list = element("ul");
  for (const one of all.slice(0, kFailures)) list.append(element("li", `${number(one.points)}: ${one.error}`));
  if (all.length > kFailures) list.append(element("li", `${all.length - kFailures} further errors: kvtwin sweep prints them`));
  into.append(list);
}
