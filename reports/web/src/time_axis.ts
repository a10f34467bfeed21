// The time axis that all plots over a run have in common: from 0 to the end of the longest run, in one unit.

import type { Run } from "./data.js";
import { number } from "./page.js";

export interface TimeAxis {
  end: number;  // s
  unit: string;
  seconds: number;  // of one unit
}

export function timeAxis(runs: Run[]): TimeAxis {
  let end = 0;
  for (const run of runs) {
    const lasts = Number(run.summary["elapsed_s"] ?? 0);
    // A series ends with an interval that may be longer than the rest of the run.
    const drawn = Math.max(0, ...run.series.map((series) => series.mean.length * series.width_s));
    end = Math.max(end, lasts > 0 ? lasts : drawn);
  }
  if (!(end > 0)) end = 1;
  const [unit, seconds]: [string, number] = end > 7200 ? ["h", 3600] : end > 600 ? ["min", 60] : ["s", 1];
  return { end, unit, seconds };
}

// For points [seconds / axis.seconds, value].
export function valueAxis(axis: TimeAxis): object {
  return {
    type: "value",
    min: 0,
    max: axis.end / axis.seconds,
    axisLabel: { formatter: (at: number) => (at >= 0.999 * (axis.end / axis.seconds) && !Number.isInteger(at) ? "" : `${number(at, 3)} ${axis.unit}`), showMaxLabel: true },
  };
}

export const kZoom = [{ type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, moveOnMouseWheel: false }];

// For stacked areas, which need categories: with two value axes ECharts would stack along the first, time.
export function categoryAxis(axis: TimeAxis, at: number[]): object {
  const { places, label } = roundMarks(at.map((second) => second / axis.seconds));
  const marks = { interval: (index: number) => places.has(index) };
  return {
    type: "category",
    boundaryGap: false,
    data: at.map((second) => String(Math.round((second / axis.seconds) * 1e6) / 1e6)),
    axisLabel: { ...marks, formatter: (_: string, index: number) => `${label(index)} ${axis.unit}` },
    axisTick: marks,
    splitLine: { show: false },
  };
}

// About eight axis marks, at the intervals that contain round numbers.
function roundMarks(at: number[]): { places: Set<number>; label: (index: number) => string } {
  const width = (at[1] ?? 1) - (at[0] ?? 0);
  const end = (at[at.length - 1] ?? 0) + width;
  const rough = Math.pow(10, Math.floor(Math.log10(end / 8)));
  const step = rough * ([1, 2, 5, 10].find((factor) => end / (factor * rough) <= 8) ?? 10);
  const marks = new Map<number, number>();
  for (let mark = 0; mark < end; mark += step) marks.set(Math.min(Math.round(mark / width), at.length - 1), mark);
  return { places: new Set(marks.keys()), label: (index) => number(marks.get(index), 3) };
}
