// KV that head groups hold and that their heads retain.

import type { Run } from "./data.js";
import { choose, isDark, number, plot, section } from "./page.js";

type View = { name: string; of: (held: number, needed: number) => number };
const kViews: View[] = [
  { name: "held but not needed, % of held tokens", of: (held, needed) => (held > 0 ? 100 * (1 - Math.min(1, needed / held)) : 0) },
  { name: "held, % of ranked tokens", of: (held) => 100 * held },
  { name: "needed by the head itself, % of ranked tokens", of: (_, needed) => 100 * needed },
];

export function heads(runs: Run[]): void {
  const grouped = runs.filter((run) => run.heads !== undefined);
  if (grouped.length === 0) return;
  const into = section(
    "heads",
    "Fragmentation by head",
    "All heads of a group hold as much as the head that retains most. The need of a head comes from calibration (docs/design/methods/tangram.md#fragmentation), not from this run's own scores.",
  );
  for (const run of grouped) {
    const all = run.heads;
    if (!all) continue;
    const sum = (values: number[]) => values.reduce((a, b) => a + b, 0);
    const fraction = 1 - sum(all.needed) / Math.max(sum(all.held), 1e-9);
    let view = 0;
    let redraw = () => {};
    choose(into, `${run.name}:`, kViews.map((one) => one.name), (index) => {
      view = index;
      redraw();
    });
    const label = `${run.name}: layers by KV heads; ${number(100 * fraction, 3)} % of held tokens are not needed`;
    redraw = plot(into, label, () => {
      const of = kViews[view]?.of ?? (() => 0);
      const data = all.held.map((held, i) => [
        i % all.kv_heads,
        Math.floor(i / all.kv_heads),
        Number(of(held, all.needed[i] ?? 0).toFixed(2)),
      ]);
      return {
        grid: { left: 64, right: 120, top: 30, bottom: 56 },
        tooltip: { trigger: "item", confine: true, formatter: (at: { data: number[] }) => `layer ${at.data[1]}, head ${at.data[0]}: ${at.data[2]} %` },
        xAxis: { type: "category", name: "KV head", nameLocation: "middle", nameGap: 28, data: Array.from({ length: all.kv_heads }, (_, i) => String(i)) },
        yAxis: { type: "category", name: "layer", nameLocation: "start", inverse: true, data: Array.from({ length: all.layers }, (_, i) => String(i)) },
        visualMap: {
          min: 0,
          max: Math.max(1, ...data.map((one) => one[2] ?? 0)),
          right: 8,
          top: "middle",
          calculable: true,
          formatter: (value: number) => `${number(value, 3)} %`,
          // One hue that darkens, so that a grey print shows it too.
          inRange: { color: isDark() ? ["#0b2233", "#0072b2", "#8fd3ff"] : ["#e3f1fa", "#0072b2", "#00263d"] },
          textStyle: { color: isDark() ? "#dddddd" : "#222222" },
        },
        series: [{ type: "heatmap", data }],
      };
    }, { height: 120 + Math.min(14 * all.layers, 700), wide: true });
  }
}
