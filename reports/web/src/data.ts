// What report.cc writes into the page, and how its columns are read.

export interface Series {
  name: string;
  unit: string;
  width_s: number;
  mean: number[];
}

// Little-endian, base64; all columns have one value per call.
export interface CallColumns {
  count: number;
  of: number; // calls of the run; more than count if they were thinned out
  ready_s: string; // float64
  queue_s: string; // float32, like the next ones: ready to admitted, to the first token, to the end
  ttft_s: string;
  e2e_s: string;
  prompt: string; // uint32
  output: string;
  reused: string;
  session: string; // index of sessions
}

export interface Run {
  dir: string;
  name: string;
  summary: Record<string, number | string>;
  scenario: string;
  notes: string[];
  memory: { name: string; bytes: number }[];
  series: Series[];
  calls: CallColumns;
  sessions: string[];
}

export interface SweepPoint {
  values: string[];
  metrics: Record<string, number | string>;
}

export interface Sweep {
  dir: string;
  axes: string[];
  points: SweepPoint[];
}

export interface Report {
  command: string;
  version: string;
  runs: Run[];
  sweeps: Sweep[];
}

export interface Calls {
  count: number;
  ready: Float64Array;
  queue: Float32Array;
  ttft: Float32Array;
  e2e: Float32Array;
  prompt: Uint32Array;
  output: Uint32Array;
  reused: Uint32Array;
  session: Uint32Array;
}

function bytes(base64: string): ArrayBuffer {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) out[i] = text.charCodeAt(i);
  return out.buffer;
}

export function unpack(columns: CallColumns): Calls {
  return {
    count: columns.count,
    ready: new Float64Array(bytes(columns.ready_s)),
    queue: new Float32Array(bytes(columns.queue_s)),
    ttft: new Float32Array(bytes(columns.ttft_s)),
    e2e: new Float32Array(bytes(columns.e2e_s)),
    prompt: new Uint32Array(bytes(columns.prompt)),
    output: new Uint32Array(bytes(columns.output)),
    reused: new Uint32Array(bytes(columns.reused)),
    session: new Uint32Array(bytes(columns.session)),
  };
}

// Seconds per output token after the first; NaN where there is only one.
export function tpot(calls: Calls, i: number): number {
  const more = (calls.output[i] ?? 0) - 1;
  return more > 0 ? ((calls.e2e[i] ?? 0) - (calls.ttft[i] ?? 0)) / more : NaN;
}

export function readReport(): Report {
  const text = document.getElementById("report")?.textContent ?? "";
  return JSON.parse(text) as Report;
}

// The value below which `share` of the ascending `sorted` lies: nearest rank.
export function quantile(sorted: Float64Array, share: number): number {
  if (sorted.length === 0) return NaN;
  const rank = Math.ceil(share * sorted.length) - 1;
  return sorted[Math.min(Math.max(rank, 0), sorted.length - 1)] ?? NaN;
}
