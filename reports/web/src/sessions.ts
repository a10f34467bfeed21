// One session at a time: its calls as bars, from ready to the end, in lanes that do not overlap.

import type { EChartsCoreOption } from "echarts/core";
import type { Calls, Run } from "./data.js";
import { choose, colours, plot, section } from "./page.js";

interface Bar {
  lane: number;
  from: number;
  admitted: number;
  first: number;
  to: number;
  call: number;
}

const kPhases = ["queue", "prefill", "decode"];

export function gantt(runs: Run[], all: Calls[]): void {
  const into = section("sessions", "Sessions", "Calls of one agent session; parallel ones (sub-agents) in lanes of their own. Gaps are tools and thinking.");
  runs.forEach((run, r) => {
    const calls = all[r];
    if (!calls || run.sessions.length === 0) return;
    const bySession = callsBySession(calls, run.sessions.length);
    const order = bySession.map((_, i) => i).filter((i) => (bySession[i]?.length ?? 0) > 0);
    order.sort((a, b) => (bySession[b]?.length ?? 0) - (bySession[a]?.length ?? 0));
    const shown = order.slice(0, 200);
    let chosen = shown[0] ?? 0;
    choose(into, `${run.name}:`, shown.map((i) => `${run.sessions[i] ?? ""} (${bySession[i]?.length ?? 0} calls)`), (index) => {
      chosen = shown[index] ?? 0;
      update();
    });
    const update = plot(into, `${run.name}: one session`, () => option(calls, bySession[chosen] ?? []), 320);
  });
}

function callsBySession(calls: Calls, sessions: number): number[][] {
  const out: number[][] = Array.from({ length: sessions }, () => []);
  for (let i = 0; i < calls.count; ++i) out[calls.session[i] ?? 0]?.push(i);
  return out;
}

function lanes(calls: Calls, members: number[]): Bar[] {
  const ends: number[] = [];
  const sorted = [...members].sort((a, b) => (calls.ready[a] ?? 0) - (calls.ready[b] ?? 0));
  return sorted.map((call) => {
    const from = calls.ready[call] ?? 0;
    const to = from + (calls.e2e[call] ?? 0);
    let lane = ends.findIndex((end) => end <= from);
    if (lane < 0) lane = ends.length;
    ends[lane] = to;
    return { lane, from, admitted: from + (calls.queue[call] ?? 0), first: from + (calls.ttft[call] ?? 0), to, call };
  });
}

function option(calls: Calls, members: number[]): EChartsCoreOption {
  const bars = lanes(calls, members);
  const start = bars[0]?.from ?? 0;
  const count = Math.max(1, ...bars.map((bar) => bar.lane + 1));
  const pieces = bars.flatMap((bar) =>
    ([[bar.from, bar.admitted], [bar.admitted, bar.first], [bar.first, bar.to]] as const)
      .map(([from, to], phase) => ({ phase, value: [bar.lane, from - start, to - start, bar.call] }))
      .filter((piece) => (piece.value[2] ?? 0) > (piece.value[1] ?? 0)),
  );
  return {
    tooltip: { trigger: "item", confine: true, formatter: (at: { data: { value: number[] }; seriesName: string }) => tip(calls, at) },
    grid: { left: 64, right: 24, top: 40, bottom: 72 },
    xAxis: { type: "value", name: "s since the session began", nameLocation: "middle", nameGap: 28 },
    yAxis: { type: "category", data: Array.from({ length: count }, (_, i) => `lane ${i + 1}`), inverse: true },
    dataZoom: [{ type: "inside" }, { type: "slider", height: 16, bottom: 8 }],
    series: kPhases.map((name, phase) => ({
      name,
      type: "custom",
      itemStyle: { color: colours[[6, 1, 0][phase] ?? 0] },
      encode: { x: [1, 2], y: 0 },
      renderItem: bar,
      data: pieces.filter((piece) => piece.phase === phase).map(({ value }) => ({ value })),
    })),
  };
}

function tip(calls: Calls, at: { data: { value: number[] }; seriesName: string }): string {
  const [, from = 0, to = 0, call = 0] = at.data.value;
  return `call ${call}: ${at.seriesName} ${(to - from).toFixed(3)} s<br>` +
    `${calls.prompt[call]} prompt tokens, ${calls.reused[call]} reused, ${calls.output[call]} out`;
}

interface Drawing {
  value(index: number): number;
  coord(at: [number, number]): [number, number];
  size(extent: [number, number]): [number, number];
  style(): object;
}

// A piece of a lane: value is [lane, from, to, ...].
export function bar(_: unknown, api: Drawing): object {
  const lane = api.value(0);
  const [x, y] = api.coord([api.value(1), lane]);
  const [end] = api.coord([api.value(2), lane]);
  const height = api.size([0, 1])[1] * 0.6;
  return {
    type: "rect",
    shape: { x, y: y - height / 2, width: Math.max(end - x, 1), height },
    style: api.style(),
  };
}
