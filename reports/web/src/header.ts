// The top of the page: what the report is about, the five cards, and what limits each run.

import type { Report, Run } from "./data.js";
import { cardsOf, figure, keepsAll, sloOf, type CardFigure } from "./figures.js";
import { term } from "./glossary.js";
import { element, markOf, section } from "./page.js";
import { change, quantity } from "./units.js";

// Cards list this many runs; the table has all.
const kCardRuns = 6;

function title(report: Report): string {
  const parts: string[] = [];
  const names = [...new Set(report.runs.map((run) => run.name))];
  if (report.runs.length === 1) parts.push(names[0] ?? "");
  else if (report.runs.length > 1 && names.length <= 3) parts.push(names.join(" vs "));
  else if (report.runs.length > 1) parts.push(`${report.runs.length} runs compared`);
  if (report.plans.length > 0) parts.push(several("Plan", report.plans.map((plan) => stem(plan.data.scenario ?? plan.dir))));
  if (report.sweeps.length > 0) parts.push(several("Sweep", report.sweeps.map((sweep) => String(sweep.points[0]?.metrics["scenario"] ?? sweep.dir))));
  if (report.validations.length > 0) parts.push("Validation");
  if (report.qualities.length > 0) parts.push("Quality");
  return parts.join(" · ") || "kvtwin report";
}

// "Plan of a", "2 plans of a", "2 plans of a and b".
function several(what: string, of: string[]): string {
  const names = [...new Set(of)];
  const count = of.length > 1 ? `${of.length} ${what.toLowerCase()}s` : what;
  return names.length <= 3 ? `${count} of ${names.join(" and ")}` : count;
}

const stem = (path: string) => (path.split("/").at(-1) ?? path).replace(/\.textproto$/, "");

function facts(run: Run): [string, string][] {
  const backend = String(run.summary["backend"] ?? "");
  const out: [string, string][] = [...run.setting];
  if (backend === "measured") out.push(["source", "measured on a real server"]);
  else if (backend !== "") out.push(["backend", `${backend}, seed ${run.summary["seed"]}`]);
  return out;
}

// What all points of the sweeps and plans have in common.
function settings(report: Report): [string, string][] {
  const of = [...report.sweeps.map((sweep) => sweep.setting), ...report.plans.map((plan) => plan.setting ?? [])];
  return (of[0] ?? []).filter(([label, value]) => of.every((one) => one.some((other) => other[0] === label && other[1] === value)));
}

function chip(label: string, value: string): HTMLElement {
  const out = element("span", "", "fact");
  out.append(element("span", label), ` ${value}`);
  return out;
}

export function header(report: Report): void {
  const name = title(report);
  document.title = `${name} – kvtwin`;
  const into = document.querySelector("header .about-page");
  if (!into) return;
  into.append(element("h1", name));
  const line = element("p", "", "facts");
  const each = report.runs.map((run) => new Map(facts(run)));
  for (const [label, value] of report.runs.length === 0 ? settings(report) : []) line.append(chip(label, value));
  for (const [label, value] of each[0] ?? []) if (each.every((one) => one.get(label) === value)) line.append(chip(label, value));
  line.append(chip("kvtwin", report.version), chip("page of", fileDate()));
  into.append(line);
  if (report.runs.length < 2) return;
  report.runs.forEach((run, r) => {
    const own = [...(each[r] ?? [])].filter(([label, value]) => each.some((one) => one.get(label) !== value));
    if (own.length === 0) return;
    const line = element("p", "", "facts");
    line.append(markOf(r), element("b", run.name));
    for (const [label, value] of own) line.append(chip(label, value));
    into.append(line);
  });
}

// The date of the page's file. The page itself has no date, so that equal inputs give equal bytes.
function fileDate(): string {
  const date = new Date(document.lastModified);
  const two = (part: number) => String(part).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

function valueLine(report: Report, run: Run, r: number, card: CardFigure): HTMLElement {
  const out = element("div", "", "value");
  const value = figure(run, card.name);
  const slo = sloOf(report.slos, run.slos, card.name);
  if (slo) out.classList.add(slo.value[2] ? "kept" : "broken");
  if (report.runs.length > 1) out.append(markOf(r));
  out.append(element("b", quantity(value, card.unit)));
  const first = report.runs[0];
  if (r > 0 && first) {
    const text = change(value, figure(first, card.name));
    const better = (value ?? 0) > (figure(first, card.name) ?? 0) === card.more;
    if (text) out.append(element("span", text, text.startsWith("±") ? "same" : better ? "better" : "worse"));
  }
  if (slo) out.append(element("span", `${slo.value[2] ? "✓" : "✗"} ${slo.slo.text}, ${(100 * slo.value[1]).toFixed(0)}\u00a0% used`, "verdict"));
  return out;
}

function cards(report: Report): HTMLElement {
  const out = element("div", "", "cards");
  for (const card of cardsOf(report.slos)) {
    const box = element("div", "", "card");
    const head = element("h3");
    head.append(term(card.label, card.name));
    box.append(head);
    const shown = report.runs.slice(0, kCardRuns);
    // A real server's files may lack the figure.
    if (!shown.some((run) => figure(run, card.name) !== undefined)) continue;
    shown.forEach((run, r) => box.append(valueLine(report, run, r, card)));
    const verdicts = shown.map((run) => sloOf(report.slos, run.slos, card.name)?.value[2]).filter((kept) => kept !== undefined);
    if (verdicts.length > 0) box.classList.add(verdicts.every((kept) => kept) ? "kept" : "broken");
    out.append(box);
  }
  return out;
}

// SLOs of figures that no card shows.
function others(report: Report): HTMLElement | undefined {
  const rest = report.slos.map((slo, s) => ({ slo, s })).filter(({ slo }) => slo.figure === "");
  if (rest.length === 0 || report.runs.length === 0) return undefined;
  const out = element("p", "", "slos");
  out.append("Further SLOs: ");
  report.runs.forEach((run, r) => {
    if (report.runs.length > 1) out.append(markOf(r));
    for (const { slo, s } of rest) {
      const value = run.slos[s];
      out.append(element("span", value ? `${value[2] ? "✓" : "✗"} ${slo.text}, ${(100 * value[1]).toFixed(0)}\u00a0% used` : `? ${slo.text}: not known`, value ? (value[2] ? "kept" : "broken") : ""), " ");
    }
  });
  return out;
}

// Each note once, and the runs that have it.
function notesOf(runs: Run[]): Map<string, string[]> {
  const out = new Map<string, string[]>();
  for (const run of runs) for (const note of run.notes) out.set(note, [...(out.get(note) ?? []), run.name]);
  return out;
}

export function summary(report: Report): HTMLElement {
  const into = section("overview", "Overview", "");
  into.append(cards(report));
  if (report.runs.length > kCardRuns) into.append(element("p", `The cards show the first ${kCardRuns} of ${report.runs.length} runs; the tables have all.`, "about"));
  const further = others(report);
  if (further) into.append(further);
  report.runs.forEach((run, r) => {
    if (!run.limited_by) return;
    const line = element("p", "", "limits");
    if (report.runs.length > 1) line.append(markOf(r), element("b", `${run.name} `));
    line.append(report.runs.length > 1 ? "is limited by " : "Limited by ", run.limited_by, ".");
    into.append(line);
  });
  for (const run of report.runs) {
    if (keepsAll(run.slos) === undefined && report.slos.length > 0) into.append(element("p", `${run.name} lacks figures of the SLOs.`, "about"));
  }
  for (const [note, names] of notesOf(report.runs)) into.append(element("p", `${names.length < report.runs.length ? `${names.join(", ")}: ` : ""}${note}`, "note"));
  return into;
}
