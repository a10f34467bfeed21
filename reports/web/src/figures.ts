// The figures of runs by their names in docs/reference/metrics.md, the groups they are shown in, and their SLOs.

import type { Run, Slo, SloValue } from "./data.js";
import { unitOf } from "./glossary.js";

// Figures that a real server's files lack are 0 in a result, and undefined here.
export function figure(run: Run, name: string): number | undefined {
  const value = run.summary[name];
  if (typeof value !== "number" || !Number.isFinite(value)) return undefined;
  return run.summary["backend"] === "measured" && value === 0 ? undefined : value;
}

export interface Row {
  label: string;
  name: string;
}

const percentiles = (label: string, name: string, points: string[]): Row[] =>
  points.map((point) => ({ label: `${label} ${point === "mean" ? "mean" : point.toUpperCase()}`, name: `${name}_${point}_ms` }));

export const kGroups: { title: string; rows: Row[] }[] = [
  {
    title: "Requests and rates",
    rows: [
      { label: "requests finished", name: "requests_finished" },
      { label: "requests rejected", name: "requests_rejected" },
      { label: "requests cancelled", name: "requests_cancelled" },
      { label: "requests open at the end", name: "requests_open" },
      { label: "sessions", name: "sessions" },
      { label: "duration", name: "elapsed_s" },
      { label: "requests per second", name: "requests_per_s" },
      { label: "output tokens per second", name: "output_tokens_per_s" },
      { label: "prompt tokens per second", name: "prompt_tokens_per_s" },
      { label: "engines busy", name: "busy" },
      { label: "preemptions", name: "preemptions" },
    ],
  },
  {
    title: "Latency",
    rows: [
      ...percentiles("TTFT", "ttft", ["mean", "p50", "p95", "p99"]),
      ...percentiles("TPOT", "tpot", ["mean", "p50", "p95", "p99"]),
      ...percentiles("latency", "e2e", ["mean", "p50", "p99"]),
      { label: "session, start to end, median", name: "session_makespan_p50_ms" },
      { label: "session without tools and thinking, median", name: "session_served_p50_ms" },
    ],
  },
  {
    title: "Where requests spend their time",
    rows: ["queue", "transfer", "prefill", "recompute", "decode", "host", "latency"].map((part) => ({
      label: part === "latency" ? "sum" : part, name: `time_${part}_s`,
    })),
  },
  {
    title: "Prefix reuse",
    rows: [
      { label: "prefix reuse at first admission", name: "prefix_reuse" },
      { label: "prompt tokens admitted", name: "admitted_prompt_tokens" },
      { label: "prompt tokens reused", name: "reused_tokens_first" },
      { label: "reused after preemption", name: "reused_tokens_again" },
      { label: "recomputed after preemption", name: "recomputed_tokens" },
      { label: "at most, Belady's order", name: "reused_tokens_bound" },
      { label: "loaded from the host", name: "hit_tokens_host" },
      { label: "loaded from the disk", name: "hit_tokens_disk" },
    ],
  },
  {
    title: "KV pages",
    rows: [
      { label: "GPU pages", name: "gpu_pages" },
      { label: "room of all pages", name: "gpu_tokens" },
      { label: "needed by requests, peak", name: "gpu_pages_held_peak" },
      { label: "needed by requests, mean", name: "gpu_pages_held_fraction" },
      { label: "needed or cached, peak", name: "gpu_pages_resident_peak" },
      { label: "tail fragmentation", name: "fragmentation_tail" },
      { label: "group fragmentation", name: "fragmentation_group" },
      { label: "reclaimed by dropping", name: "reclaimed" },
    ],
  },
  {
    title: "Copies between memories",
    rows: [
      { label: "copies", name: "transfers" },
      { label: "failed", name: "transfers_failed" },
      { label: "to the GPU", name: "transfer_bytes_in" },
      { label: "from the GPU", name: "transfer_bytes_out" },
      { label: "from other engines", name: "transfer_bytes_received" },
      { label: "read from the disk", name: "disk_bytes_read" },
      { label: "written to the disk", name: "disk_bytes_written" },
      { label: "exposed", name: "transfer_exposed_s" },
      { label: "hidden", name: "transfer_hidden_s" },
    ],
  },
  {
    title: "Retrieval and compression",
    rows: [
      { label: "compressions", name: "compressions" },
      { label: "probe passes", name: "compression_probe_s" },
      { label: "scoring", name: "compression_score_s" },
      { label: "selection", name: "compression_select_s" },
      { label: "compaction", name: "compression_move_s" },
      { label: "compressions in steps with prompts", name: "prompt_steps_compression_s" },
      { label: "steps with prompts", name: "prompt_steps_s" },
      { label: "retrieval, pages missed", name: "retrieval_miss_rate" },
      { label: "retrieval, heads corrected", name: "retrieval_correction_rate" },
      { label: "recalled", name: "retrieval_bytes_in" },
      { label: "recall exposed", name: "retrieval_exposed_s" },
      { label: "recall hidden", name: "retrieval_hidden_s" },
      { label: "attention, of even splits", name: "attention_slowdown" },
    ],
  },
  {
    title: "Price",
    rows: [
      { label: "GPUs", name: "gpus" },
      { label: "$ per hour", name: "usd_per_hour" },
      { label: "$ per million output tokens", name: "usd_per_million_output_tokens" },
      { label: "$ per million tokens", name: "usd_per_million_tokens" },
    ],
  },
];

export interface CardFigure extends Row {
  unit: string;
  more: boolean;  // more is better
}

export const kCards: CardFigure[] = [
  { label: "TTFT p99", name: "ttft_p99_ms", unit: "ms", more: false },
  { label: "TPOT p95", name: "tpot_p95_ms", unit: "ms", more: false },
  { label: "output tokens/s", name: "output_tokens_per_s", unit: "", more: true },
  { label: "$ per million output tokens", name: "usd_per_million_output_tokens", unit: "", more: false },
  { label: "prefix reuse", name: "prefix_reuse", unit: "fraction", more: true },
];

const kLatencyNames: Record<string, string> = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2e: "latency", session_makespan: "session" };

// "TTFT p95" of ttft_p95_ms.
function labelOf(metric: string): string {
  const latency = /^(\w+)_(mean|p\d+)_ms$/.exec(metric);
  if (latency) return `${kLatencyNames[latency[1] ?? ""] ?? (latency[1] ?? "").replaceAll("_", " ")} ${latency[2]}`;
  return metric.replaceAll("_", " ");
}

// A card for each metric that an SLO limits, then the usual ones.
export function cardsOf(slos: Slo[]): CardFigure[] {
  const usual = (name: string) => kCards.find((card) => card.name === name);
  const limited = [...new Map(slos.filter((slo) => slo.figure !== "").map((slo) => [slo.figure, slo])).values()].map(
    (slo) => usual(slo.figure) ?? { label: labelOf(slo.figure), name: slo.figure, unit: unitOf(slo.figure), more: slo.text.includes(">") },
  );
  return [...limited, ...kCards.filter((card) => !limited.some((one) => one.name === card.name))];
}

// The SLO that limits `name`; of several, the one with the largest use.
export function sloOf(slos: Slo[], values: SloValue[], name: string): { slo: Slo; value: [number, number, boolean] } | undefined {
  let out: { slo: Slo; value: [number, number, boolean] } | undefined;
  slos.forEach((slo, i) => {
    const value = values[i];
    if (slo.figure === name && value && (!out || value[1] > out.value[1])) out = { slo, value };
  });
  return out;
}

// Whether all SLOs are kept; undefined without any, or if one is not known.
export function keepsAll(values: SloValue[]): boolean | undefined {
  if (values.length === 0) return undefined;
  if (values.some((value) => value && !value[2])) return false;
  return values.every((value) => value !== null) ? true : undefined;
}
