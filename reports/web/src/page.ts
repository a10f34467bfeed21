// The page around the plots: sections, tables, light, dark and print colours, keyboard.

import * as echarts from "echarts/core";
import type { EChartsCoreOption, ECharts } from "echarts/core";

// Okabe and Ito's colours, which are distinct for all kinds of colour vision, ordered so that lightness differs too.
export const colours = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#7f7f7f", "#f0e442"];

// Shapes distinguish more items than there are colours.
export const symbols = ["circle", "rect", "triangle", "diamond", "pin", "arrow"];

// The drawn plots, also for tools that inspect a page (look.mjs).
const charts: { label: string; chart: ECharts; option: () => EChartsCoreOption }[] = [];
Object.assign(window, { kvtwinCharts: charts });
let dark = matchMedia("(prefers-color-scheme: dark)").matches;

function base(): EChartsCoreOption {
  return {
    color: colours,
    backgroundColor: "transparent",
    textStyle: { color: dark ? "#dddddd" : "#222222", fontFamily: "inherit" },
    animation: false,
    grid: { left: 64, right: 24, top: 40, bottom: 56 },
    tooltip: { trigger: "axis", confine: true },
    legend: { top: 4, itemWidth: 18, itemHeight: 10, textStyle: { color: dark ? "#dddddd" : "#222222" }, type: "scroll" },
  };
}

// Gives lines and names of an axis the colours of the page; options that the plot sets stay.
function axis<T extends object>(one: T): T {
  return {
    splitLine: { lineStyle: { color: dark ? "#333333" : "#e6e6e6" } },
    axisLine: { lineStyle: { color: dark ? "#888888" : "#666666" } },
    axisLabel: { color: dark ? "#bbbbbb" : "#444444" },
    ...one,
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
  if (Array.isArray(series) && series.every((one: { data?: unknown[] }) => (one.data ?? []).length === 0)) {
    all["title"] = { text: kNothing, left: "center", top: "middle", textStyle: { color: dark ? "#a0a0a0" : "#666666", fontSize: 14, fontWeight: "normal" } };
  }
  chart.setOption(all, { notMerge: true });
}

export function redraw(): void {
  for (const { chart, option } of charts) draw(chart, option);
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
  const link = document.createElement("a");
  link.href = `#${id}`;
  link.textContent = title;
  document.querySelector("nav")?.append(link);
  return out;
}

// A plot with a name for screen readers. It is drawn when it comes into view, so that a page of many plots opens fast.
export function plot(into: HTMLElement, label: string, option: () => EChartsCoreOption, height = 280): () => void {
  const figure = element("figure");
  figure.append(element("figcaption", label));
  const box = element("div", "", "plot");
  box.style.height = `${height}px`;
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
  };
  const watcher = new IntersectionObserver((seen) => {
    if (seen.some((one) => one.isIntersecting)) {
      watcher.disconnect();
      show();
    }
  }, { rootMargin: "300px" });
  watcher.observe(box);
  window.addEventListener("beforeprint", show);
  return () => {
    if (chart) draw(chart, option);
  };
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
  });
}

export function table(into: HTMLElement, caption: string, head: string[], rows: string[][]): void {
  const out = document.createElement("table");
  out.append(element("caption", caption));
  const top = out.createTHead().insertRow();
  for (const name of head) {
    const cell = element("th", name);
    cell.setAttribute("scope", "col");
    top.append(cell);
  }
  const body = out.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, i) => {
      const cell = element(i === 0 ? "th" : "td", text);
      if (i === 0) cell.setAttribute("scope", "row");
      line.append(cell);
    });
  }
  const wide = element("div", "", "wide");
  wide.append(out);
  into.append(wide);
}

export function choose(into: HTMLElement, label: string, options: string[], changed: (index: number) => void): void {
  const line = element("label", `${label} `);
  const select = document.createElement("select");
  options.forEach((name, i) => select.append(new Option(name, String(i))));
  select.addEventListener("change", () => changed(Number(select.value)));
  line.append(select);
  into.append(line);
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
