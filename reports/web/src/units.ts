// Numbers as people read them: one unit per row, chosen by its largest value.

import { number } from "./page.js";

interface Scale {
  unit: string;
  times: number;
}

const kScales: Record<string, [number, string, number][]> = {
  // From this value on, the unit and the factor.
  ms: [[600_000, "min", 1 / 60e3], [1000, "s", 1e-3], [0, "ms", 1]],
  s: [[7200, "h", 1 / 3600], [600, "min", 1 / 60], [0, "s", 1]],
  bytes: [[1e9, "GB", 1e-9], [1e6, "MB", 1e-6], [1e3, "kB", 1e-3], [0, "bytes", 1]],
  fraction: [[0, "%", 100]],
};

export function scaleOf(unit: string, most: number): Scale {
  const [, name, times] = (kScales[unit] ?? []).find(([from]) => Math.abs(most) >= from) ?? [0, unit, 1];
  return { unit: name, times };
}

export function scaled(value: number | undefined, scale: Scale): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  // Percentages of three digits, without a false precision below a hundredth.
  if (scale.unit === "%") return number(Math.round(value * scale.times * 100) / 100, 3);
  return number(value * scale.times, scale.times === 1 && scale.unit !== "ms" ? 4 : 3);
}

// "2.16 s", "82.9 %", "60.9 $".
export function quantity(value: number | undefined, unit: string): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  const scale = scaleOf(unit, value);
  return scaled(value, scale) + (scale.unit ? `\u00a0${scale.unit}` : "");
}

// "+3.1 %" of `value` over `base`; "" where there is nothing to compare.
export function change(value: number | undefined, base: number | undefined): string {
  if (value === undefined || base === undefined || !(Math.abs(base) > 0)) return "";
  const percent = (100 * (value - base)) / Math.abs(base);
  if (!Number.isFinite(percent)) return "";
  const text = Math.abs(percent) < 0.05 ? "0" : Math.abs(percent) < 10 ? Math.abs(percent).toFixed(1) : Math.abs(percent).toFixed(0);
  return text === "0" ? "±0\u00a0%" : `${percent > 0 ? "+" : "−"}${text}\u00a0%`;
}
