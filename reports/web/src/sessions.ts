// One session at a time, on swimlanes: its requests as bars from ready to the end, and the tools between them.

import type { EChartsCoreOption } from "echarts/core";
import type { Requests, Run } from "./data.js";
import { choose, colours, element, plot, section } from "./page.js";
import { kZoom } from "./time_axis.js";

// A bar of a lane: queue, prefill or decode of a request; a tool; an agent whose requests are not recorded.
interface Piece {
  phase: number;
  value: [number, number, number, number]; // lane, from, to, request or tool
}

const kPhases = ["queue", "prefill", "decode", "tool", "unrecorded agent"];
const kToolPhase = 3;

export function gantt(runs: Run[], all: Requests[]): void {
  // Single requests are no sessions worth a plot.
  if (!runs.some((run, r) => (all[r]?.count ?? 0) > run.sessions.length || (all[r]?.tools.count ?? 0) > 0)) return;
  const into = section("sessions", "Sessions", "Requests and tools of one agent session; each agent has rows of its own. Gaps are think time.");
  runs.forEach((run, r) => {
    const requests = all[r];
    if (!requests || run.sessions.length === 0) return;
    const requestsOf = bySession(requests.session, requests.count, run.sessions.length);
    const toolsOf = bySession(requests.tools.session, requests.tools.count, run.sessions.length);
    const order = requestsOf.map((_, i) => i).filter((i) => (requestsOf[i]?.length ?? 0) > 0);
    order.sort((a, b) => (requestsOf[b]?.length ?? 0) - (requestsOf[a]?.length ?? 0));
    const shown = order.slice(0, 200);
    let chosen = shown[0] ?? 0;
    const name = (i: number) => `${run.sessions[i] ?? ""} (${count(requestsOf[i], "request")}, ${count(toolsOf[i], "tool")})`;
    const place = element("div");
    into.append(place);
    choose(place, `${run.name}:`, shown.map(name), (index) => {
      chosen = shown[index] ?? 0;
      update();
    });
    const update = plot(place, `${run.name}: one session, s since it began`, () => option(requests, requestsOf[chosen] ?? [], toolsOf[chosen] ?? []), { height: 300 });
  });
}

function count(of: number[] | undefined, what: string): string {
  const n = of?.length ?? 0;
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}

function bySession(session: Uint32Array, count: number, sessions: number): number[][] {
  const out: number[][] = Array.from({ length: sessions }, () => []);
  for (let i = 0; i < count; ++i) out[session[i] ?? 0]?.push(i);
  return out;
}

interface Item {
  agent: number;
  from: number;
  to: number;
  request?: number;
  tool?: number;
}

// Assigns lanes agent by agent: requests to the highest free lane, then tools where there is room; what overlaps gets
// further lanes.
function lanes(items: Item[]): { labels: string[]; lane: Map<Item, number> } {
  const labels: string[] = [];
  const lane = new Map<Item, number>();
  for (const agent of [...new Set(items.map((item) => item.agent))].sort((a, b) => a - b)) {
    const first = labels.length;
    const taken: Item[][] = [];
    const own = items.filter((one) => one.agent === agent);
    for (const item of [...own.filter((one) => one.tool === undefined), ...own.filter((one) => one.tool !== undefined)]) {
      let at = taken.findIndex((lane) => lane.every((other) => other.to <= item.from || item.to <= other.from));
      if (at < 0) {
        at = taken.push([]) - 1;
        labels.push(at > 0 ? "" : agent === 0 ? "agent" : `sub-agent ${agent}`);
      }
      taken[at]?.push(item);
      lane.set(item, first + at);
    }
  }
  return { labels, lane };
}

function pieces(requests: Requests, item: Item, lane: number, start: number): Piece[] {
  const piece = (phase: number, from: number, to: number, of: number): Piece => ({ phase, value: [lane, from - start, to - start, of] });
  if (item.tool !== undefined) return [piece(kToolPhase + (requests.tools.inner[item.tool] ?? 0), item.from, item.to, item.tool)];
  const request = item.request ?? 0;
  const admitted = item.from + (requests.queue[request] ?? 0);
  const first = item.from + (requests.ttft[request] ?? 0);
  return [piece(0, item.from, admitted, request), piece(1, admitted, first, request), piece(2, first, item.to, request)];
}

function option(requests: Requests, members: number[], tools: number[]): EChartsCoreOption {
  const items: Item[] = [
    ...members.map((request) => {
      const from = requests.ready[request] ?? 0;
      return { agent: requests.agent[request] ?? 0, from, to: from + (requests.e2e[request] ?? 0), request };
    }),
    ...tools.map((tool) => {
      const from = requests.tools.released[tool] ?? 0;
      return { agent: requests.tools.agent[tool] ?? 0, from, to: from + (requests.tools.taken[tool] ?? 0), tool };
    }),
  ].sort((a, b) => a.from - b.from);
  const start = items[0]?.from ?? 0;
  const { labels, lane } = lanes(items);
  const all = items.flatMap((item) => pieces(requests, item, lane.get(item) ?? 0, start)).filter(({ value }) => value[2] > value[1]);
  return {
    tooltip: { trigger: "item", confine: true, formatter: (at: { data: { value: number[] }; seriesName: string }) => tip(requests, at) },
    grid: { left: 8, right: 24, top: 28, bottom: 40, containLabel: true },
    xAxis: { type: "value" },
    yAxis: { type: "category", data: labels, inverse: true, axisLabel: { interval: 0 } },
    dataZoom: [...kZoom, { type: "slider", height: 16, bottom: 8 }],
    series: kPhases.map((name, phase) => ({
      name,
      type: "custom",
      itemStyle: { color: colours[[6, 1, 0, 2, 4][phase] ?? 0] },
      encode: { x: [1, 2], y: 0 },
      renderItem: bar,
      data: all.filter((piece) => piece.phase === phase).map(({ value }) => ({ value })),
    })).filter((series) => series.data.length > 0),
  };
}

function tip(requests: Requests, at: { data: { value: number[] }; seriesName: string }): string {
  const [, from = 0, to = 0, of = 0] = at.data.value;
  const took = `${(to - from).toFixed(3)} s`;
  if (kPhases.indexOf(at.seriesName) >= kToolPhase) return `${at.seriesName}: ${took}`;
  return `request ${of}: ${at.seriesName} ${took}<br>` +
    `${requests.prompt[of]} prompt tokens, ${requests.reused[of]} reused, ${requests.output[of]} out`;
}

interface TensorDraw {
  value(index: number): number;
  coord(at: [number, number]): [number, number];
  size(extent: [number, number]): [number, number];
  style(): object;
}

// Draws a bar of a lane: value is [lane, from, to, ...].
export function bar(_: unknown, api: TensorDraw): object {
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
