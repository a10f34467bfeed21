// The page around the plots: sections, tables, light, dark and print colours, keyboard.

import * as echarts from "echarts/core";
import type { EChartsCoreOption, ECharts } from "echarts/core";

import { link, markPoint } from "./cursor.js";

// Okabe and Ito's colours, which are distinct for all kinds of colour vision, ordered so that lightness differs too.
export const colours = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#7f7f7f", "#f0e442"];

// Shapes distinguish more items than there are colours.
export const symbols = ["circle", "rect", "triangle", "diamond", "pin", "arrow"];

// The drawn plots, also for tools that inspect a page (look.mjs).
const charts: { label: string; chart: ECharts; option: () => EChartsCoreOption }[] = [];
Object.assign(window, { kvtwinCharts: charts });
let dark = matchMedia("(prefers-color-scheme: dark)").matches;

function ink(): string {
  return dark ? "#d5d8dd" : "#22262b";
}

function base(): EChartsCoreOption {
  return {
    color: colours,
    backgroundColor: "transparent",
    textStyle: { color: ink(), fontFamily: "sans-serif" },
    animation: false,
    grid: { left: 10, right: 20, top: 28, bottom: 22, containLabel: true },
    tooltip: {
      trigger: "axis",
      confine: true,
      backgroundColor: dark ? "#262a31" : "#ffffff",
      borderColor: dark ? "#4a5058" : "#c8ccd2",
      textStyle: { color: ink(), fontSize: 12 },
    },
    legend: { top: 0, left: 0, itemWidth: 14, itemHeight: 8, textStyle: { color: ink(), fontSize: 12 }, type: "scroll" },
  };
}

// Gives lines and names of an axis the colours of the page; options that the plot sets stay.
function axis<T extends object>(one: T): T {
  return {
    splitLine: { lineStyle: { color: dark ? "#2e333a" : "#e9ebee" } },
    axisLine: { lineStyle: { color: dark ? "#6d747d" : "#9aa1a9" } },
    nameTextStyle: { color: dark ? "#a9b0b8" : "#555c64", fontSize: 12 },
    ...one,
    axisLabel: { color: dark ? "#a9b0b8" : "#555c64", fontSize: 11, hideOverlap: true, ...(one as { axisLabel?: object }).axisLabel },
  };
}

const kNothing = "Nothing to draw: no finished request has this figure.";

function draw(chart: ECharts, option: () => EChartsCoreOption): void {
  const all: EChartsCoreOption = { ...base(), ...option() };
  for (const name of ["xAxis", "yAxis", "parallelAxis"]) {
    const here = all[name];
    if (Array.isArray(here)) all[name] = here.map((one: object) => axis(one));
    else if (here) all[name] = axis(here as object);
  }
  const series = all["series"];
  // A legend of one name repeats the heading.
  if (Array.isArray(series) && new Set(series.map((one: { name?: string }) => one.name)).size < 2 && !option()["legend"]) {
    all["legend"] = { show: false };
    const grid = all["grid"];
    if (grid && !Array.isArray(grid) && (grid as { top?: number }).top === 28) all["grid"] = { ...(grid as object), top: 10 };
  }
  if (Array.isArray(series) && series.every((one: { data?: unknown[] }) => (one.data ?? []).length === 0)) {
    all["title"] = { text: kNothing, left: "center", top: "middle", textStyle: { color: dark ? "#a9b0b8" : "#555c64", fontSize: 13, fontWeight: "normal" } };
  }
  chart.setOption(all, { notMerge: true });
}

export function redraw(): void {
  for (const { chart, option } of charts) draw(chart, option);
}

// A phone, or a narrow window: as in style.css.
export function isNarrow(): boolean {
  return window.innerWidth <= 600;
}

export function isDark(): boolean {
  return dark;
}

export function element(tag: string, text = "", className = ""): HTMLElement {
  const out = document.createElement(tag);
  if (text) out.textContent = text;
  if (className) out.className = className;
  return out;
}

export function section(id: string, title: string, about: string): HTMLElement {
  const out = element("section");
  out.id = id;
  out.append(element("h2", title));
  if (about) out.append(element("p", about, "about"));
  document.querySelector("main")?.append(out);
  const anchor = document.createElement("a");
  anchor.href = `#${id}`;
  anchor.textContent = title;
  document.querySelector("nav")?.append(anchor);
  return out;
}

export interface PlotStyle {
  height?: number;
  wide?: boolean;  // takes the whole row of a grid of plots
  linked?: boolean;  // over time: has the cursor and the interval in common with the other such plots
  about?: string;  // below the name
}

// Two columns of plots.
export function columns(into: HTMLElement): HTMLElement {
  const out = element("div", "", "plots");
  into.append(out);
  return out;
}

// A plot with a name for screen readers. It is drawn when it comes into view, so that a page of many plots opens fast.
export function plot(into: HTMLElement, label: string, option: () => EChartsCoreOption, style: PlotStyle = {}): () => void {
  const figure = element("figure", "", style.wide ? "whole" : "");
  const caption = element("figcaption", label);
  const readout = element("span", "", "readout");
  caption.append(readout);
  figure.append(caption);
  if (style.about) figure.append(element("p", style.about, "about"));
  const box = element("div", "", "plot");
  box.style.height = `${style.height ?? 220}px`;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", label);
  box.tabIndex = 0;
  figure.append(box);
  into.append(figure);
  let chart: ECharts | undefined;
  const show = () => {
    if (chart) return;
    chart = echarts.init(box, undefined, { renderer: "canvas" });
    charts.push({ label, chart, option });
    draw(chart, option);
    walk(box, chart);
    if (style.linked) link(box, chart, readout);
  };
  const watcher = new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) {
      watcher.disconnect();
      show();
    }
  }, { rootMargin: "100px" });
  watcher.observe(box);
  window.addEventListener("beforeprint", show);
  return () => {
    if (chart) draw(chart, option);
  };
}

// The chart of a plot that was drawn.
export function chartOf(label: string): ECharts | undefined {
  return charts.find((one) => one.label === label)?.chart;
}

// Arrow keys show values as a pointer does: left and right move along a series, up and down between series.
function walk(box: HTMLElement, chart: ECharts): void {
  let series = 0;
  let at = -1;
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0;
    const change = { ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0;
    if (event.key === "Escape") chart.dispatchAction({ type: "hideTip" });
    if (step === 0 && change === 0) return;
    event.preventDefault();
    const all = (chart.getOption()["series"] ?? []) as { data?: unknown[] }[];
    if (all.length === 0) return;
    series = (series + change + all.length) % all.length;
    at = Math.max(0, Math.min(at + step, (all[series]?.data?.length ?? 0) - 1));
    chart.dispatchAction({ type: "showTip", seriesIndex: series, dataIndex: at });
    markPoint(box, series, at);
  });
}

// A cell is a text or an element. Without a `head` the columns have no names.
export function table(into: HTMLElement, caption: string, head: string[], rows: (string | Node)[][]): HTMLTableElement {
  const out = document.createElement("table");
  out.append(element("caption", caption));
  if (head.length > 0) {
    const top = out.createTHead().insertRow();
    for (const name of head) {
      const cell = element("th", name);
      cell.setAttribute("scope", "col");
      top.append(cell);
    }
  }
  const body = out.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((content, i) => {
      const cell = element(i === 0 ? "th" : "td");
      cell.append(content);
      // Sentences wrap, figures do not.
      if (typeof content === "string" && content.length > kSentence) {
        cell.className = "text";
        out.tHead?.rows[0]?.cells[i]?.classList.add("text");
      }
      if (i === 0) cell.setAttribute("scope", "row");
      if (head[i]) cell.dataset["name"] = head[i];
      line.append(cell);
    });
  }
  const wide = element("div", "", "wide");
  wide.append(out);
  into.append(wide);
  return out;
}

const kSentence = 32;

// The colour of a run, as in the plots.
export function markOf(run: number): HTMLElement {
  const out = element("i", "", "mark");
  out.style.background = colours[run % colours.length] ?? "";
  return out;
}

export function choose(into: HTMLElement, label: string, options: string[], changed: (index: number) => void): HTMLElement {
  const line = element("label", label === "" ? "" : `${label} `);
  const select = document.createElement("select");
  options.forEach((name, i) => select.append(new Option(name, String(i))));
  select.addEventListener("change", () => changed(Number(select.value)));
  line.append(select);
  into.append(line);
  return line;
}

// 0.0803 -> "8.03 %".
export function fraction(value: number | string | undefined): string {
  return typeof value === "number" && Number.isFinite(value) ? `${number(100 * value, 3)}\u00a0%` : "–";
}

export function number(value: number | string | undefined, digits = 4): string {
  if (value === undefined || value === "") return "–";
  if (typeof value === "string") return value;
  if (!Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumSignificantDigits: digits });
}

export function start(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => setDark(event.matches));
  const button = document.getElementById("dark") as HTMLButtonElement | null;
  button?.addEventListener("click", () => setDark(!dark));
  setDark(dark);
  window.addEventListener("resize", () => charts.forEach(({ chart }) => chart.resize()));
  // Paper is white; the reader's choice is restored after printing.
  let before = dark;
  window.addEventListener("beforeprint", () => {
    before = dark;
    setDark(false);
  });
  window.addEventListener("afterprint", () => setDark(before));
}

function setDark(value: boolean): void {
  dark = value;
  document.documentElement.dataset["theme"] = dark ? "dark" : "light";
  document.getElementById("dark")?.setAttribute("aria-pressed", String(dark));
  redraw();
}
