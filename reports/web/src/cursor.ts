// The linked cursor of plots over time: a line at the same moment in all of them, and the values there. Dragging
// selects an interval for all of them, a double click shows the whole run again.

import type { ECharts } from "echarts/core";

import { element, number } from "./page.js";

interface Linked {
  box: HTMLElement;
  chart: ECharts;
  line: HTMLElement;
  readout: HTMLElement;
}

const linked: Linked[] = [];

interface Axis {
  type?: string;
  data?: string[];
}

interface Drawn {
  name?: string;
  data?: (number | [number, number])[];
}

// Axes of steps of equal width are of categories, whose places are numbered.
function place(chart: ECharts, x: number): number {
  const axis = (chart.getOption()["xAxis"] as Axis[])[0];
  if (axis?.type !== "category") return x;
  const names = axis.data ?? [];
  const width = Number(names[1] ?? 1) - Number(names[0] ?? 0);
  return Math.max(0, Math.min(names.length - 1, Math.floor(x / width + 1e-9)));
}

function valueAt(series: Drawn, x: number, index: number, category: boolean): number | undefined {
  const data = series.data ?? [];
  if (category) return data[index] as number | undefined;
  let low = 0;
  let high = data.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (((data[middle] as [number, number])[0] ?? 0) <= x) low = middle + 1;
    else high = middle;
  }
  return (data[low - 1] as [number, number] | undefined)?.[1];
}

// Places the cursor of one plot at the moment `x`.
function mark({ box, chart, line, readout }: Linked, x: number): void {
  const option = chart.getOption();
  const category = (option["xAxis"] as Axis[])[0]?.type === "category";
  const index = place(chart, x);
  const pixel = chart.convertToPixel({ xAxisIndex: 0 }, category ? index : x);
  const inside = Number.isFinite(pixel) && chart.containPixel({ gridIndex: 0 }, [pixel, box.clientHeight / 2]);
  line.hidden = !inside;
  if (!inside) {
    readout.replaceChildren();
    return;
  }
  line.style.left = `${pixel}px`;
  const colours = (option["color"] ?? []) as string[];
  readout.replaceChildren(
    ...((option["series"] ?? []) as (Drawn & { color?: string })[]).flatMap((series, s) => {
      const value = valueAt(series, x, index, category);
      if (value === undefined) return [];
      const dot = element("i");
      dot.style.background = series.color ?? colours[s % colours.length] ?? "";
      const out = element("span", number(value, 3));
      out.prepend(dot);
      return [out];
    }),
  );
}

function leave(): void {
  for (const { line, readout } of linked) {
    line.hidden = true;
    readout.replaceChildren();
  }
}

// The moment under a pointer; undefined outside of the plot's area.
function momentAt(one: Linked, event: PointerEvent | MouseEvent): number | undefined {
  const at = one.box.getBoundingClientRect();
  const pixel: [number, number] = [event.clientX - at.left, event.clientY - at.top];
  if (!one.chart.containPixel({ gridIndex: 0 }, pixel)) return undefined;
  const x = one.chart.convertFromPixel({ xAxisIndex: 0 }, pixel[0]) as unknown as number;
  const axis = (one.chart.getOption()["xAxis"] as Axis[])[0];
  return axis?.type === "category" ? Number(axis.data?.[Math.round(x)] ?? 0) : x;
}

function endOf(chart: ECharts): number {
  const axis = (chart.getOption()["xAxis"] as (Axis & { max?: number })[])[0];
  return axis?.type === "category" ? Number(axis.data?.[axis.data.length - 1] ?? 1) : Number(axis?.max ?? 1);
}

function zoom(from: number, to: number): void {
  for (const { chart } of linked) {
    const end = endOf(chart);
    chart.dispatchAction({ type: "dataZoom", start: Math.max(0, (100 * from) / end), end: Math.min(100, (100 * to) / end) });
  }
  leave();
}

// Dragging further than this many pixels selects.
const kDrag = 6;

function selecting(one: Linked): void {
  const band = element("div", "", "band");
  band.hidden = true;
  one.box.append(band);
  let from: { x: number; moment: number } | undefined;
  const end = () => {
    from = undefined;
    band.hidden = true;
  };
  one.box.addEventListener("pointerdown", (event) => {
    const moment = momentAt(one, event);
    if (event.pointerType === "mouse" && event.button === 0 && moment !== undefined) from = { x: event.clientX, moment };
  });
  one.box.addEventListener("pointermove", (event) => {
    if (!from || Math.abs(event.clientX - from.x) < kDrag) return;
    const left = one.box.getBoundingClientRect().left;
    band.hidden = false;
    band.style.left = `${Math.min(event.clientX, from.x) - left}px`;
    band.style.width = `${Math.abs(event.clientX - from.x)}px`;
  });
  one.box.addEventListener("pointerup", (event) => {
    const to = from && Math.abs(event.clientX - from.x) >= kDrag ? momentAt(one, event) : undefined;
    if (from && to !== undefined) zoom(Math.min(from.moment, to), Math.max(from.moment, to));
    end();
  });
  one.box.addEventListener("pointerleave", end);
}

// Makes a plot over time part of the linked ones.
export function link(box: HTMLElement, chart: ECharts, readout: HTMLElement): void {
  const line = element("div", "", "cursor");
  line.hidden = true;
  box.append(line);
  const one = { box, chart, line, readout };
  linked.push(one);
  box.addEventListener("pointermove", (event) => {
    const moment = momentAt(one, event);
    if (moment === undefined) leave();
    else for (const other of linked) mark(other, moment);
  });
  box.addEventListener("pointerleave", leave);
  box.addEventListener("dblclick", () => zoom(0, Infinity));
  selecting(one);
}

// Shows the values at the `index`-th point of a series in all linked plots, for the arrow keys.
export function markPoint(box: HTMLElement, series: number, index: number): void {
  const from = linked.find((one) => one.box === box);
  if (!from) return;
  const option = from.chart.getOption();
  const axis = (option["xAxis"] as Axis[])[0];
  const data = ((option["series"] ?? []) as Drawn[])[series]?.data ?? [];
  const moment = axis?.type === "category" ? Number(axis.data?.[index] ?? 0) : (data[index] as [number, number] | undefined)?.[0];
  if (moment !== undefined) for (const one of linked) mark(one, moment);
}
