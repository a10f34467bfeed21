// The data that report.cc writes into the page, and functions to read its columns.

export interface Series {
  name: string;
  unit: string;
  width_s: number;
  mean: number[];
}

// Columns are little-endian in base64 and have one value per request.
export interface RequestColumns {
  count: number;
  of: number;  // requests of the run; more than count if they were thinned out
  ready_s: string; // float64
  queue_s: string;  // float32, like the next two: ready to admitted, to the first token, to the end
  ttft_s: string;
  e2e_s: string;
  prompt: string; // uint32
  output: string;
  reused: string;
  session: string;  // index into sessions
  agent?: string;  // uint16, index within the session; 0 the first
}

// The work of sessions between requests; one value per tool.
export interface ToolColumns {
  count: number;
  released_s: string; // float64
  taken_s: string; // float32
  agent: string; // uint16
  inner: string;  // uint8; 1: an agent whose requests are not recorded
  session: string; // uint32
}

// Fractions of ranked tokens, 0 to 1, by layer * kv_heads + head.
export interface Heads {
  layers: number;
  kv_heads: number;
  held: number[];
  needed: number[];
}

// Steps and copies in the time window of kvtwin run --timeline: [engine, row, index into names, from s, to s, pages];
// row 0 is steps, 1 host to GPU, 2 GPU to host.
export interface Timeline {
  names: string[];
  spans: [number, number, number, number, number, number][];
}

// An SLO: its text as written, the metric that it limits ("" for goodput), and the limit in the metric's unit.
export interface Slo {
  text: string;
  figure: string;
  limit: number;
}

// Of one SLO: the figure, the used fraction of the limit, and whether it is kept; null where the figure is not known.
export type SloValue = [number, number, boolean] | null;

export interface Run {
  dir: string;
  name: string;
  setting: [string, string][];  // "model", "llama-3.1-8b"; empty: not known
  limited_by?: string;
  slos: SloValue[];
  summary: Record<string, number | string>;
  scenario: string;
  notes: string[];
  memory: { name: string; bytes: number }[];
  series: Series[];
  requests: RequestColumns;
  tools?: ToolColumns;
  sessions: string[];
  heads?: Heads;
  timeline?: Timeline;
}

// validation.json of kvtwin validate.
export interface Statistics {
  count: number;
  median_percent: number;
  p95_percent: number;
  mean_percent: number;
}

export interface Figure {
  name: string;
  unit: string;
  simulated: number;
  real: number;
  real_min: number;
  real_max: number;
  absolute: boolean;  // difference and tolerance are in the figure's own unit; else in percent of real
  difference: number | null;
  tolerance: number;
  verdict: string;
  known: string;
}

export interface ValidatedScenario {
  scenario: string;
  good: boolean;
  replayed?: { repeat: string; same: boolean }[];
  open_loop: { steps?: Statistics; total_percent: number };
  figures: Figure[];
}

export interface Validation {
  profile: string;
  good: boolean;
  scenarios: ValidatedScenario[];
}

// quality.json of kvtwin evaluate: a list of these.
export interface QualityRow {
  policy: string;
  budget: number;
  task: string;
  refused?: string;
  accuracy: number;
  accuracy_low?: number;
  accuracy_high?: number;
  kv_bytes_mean: number;
  kv_read_bytes_mean?: number;
  kv_fraction?: number;
  simulated_tokens_per_s?: number | null;
  simulated_load?: string | null;
}

export interface Evidence<T> {
  dir: string;
  setting?: [string, string][];  // of plans: what all candidates have in common
  data: T;
}

// plan.json of kvtwin plan.
export interface PlanCandidate {
  name: string;
  refused?: string;
  usd_per_hour: number;
  up_to?: number;
  holds?: boolean;
  breaks?: string;
  not_judged?: boolean;
  price_known?: boolean;  // false: usd_per_hour is 0
  price_assumed?: boolean;
  price_given?: boolean;
  gpus?: number;  // in use
  nodes?: number;
  gpus_of_nodes?: number;
  up_to_text?: string;
  on_front?: boolean;
  usd_per_million_output_tokens?: number;
  slos?: Record<string, { value: number; use: number }>;
}

export interface Plan {
  command?: string;
  load: string;
  need: number;
  best?: string;
  holds_up_to?: number;
  holds_more?: boolean;  // no load was asked that breaks it
  not_judged?: boolean;
  scenario?: string;
  answer: string[];
  table: string[][];
  candidates: PlanCandidate[];
  cost_curve?: { up_to: number; usd_per_hour: number; candidate: string }[];
  uses?: { limit: string; use: number }[];
}

export interface SweepPoint {
  values: string[];
  dir: string;
  slos: SloValue[];
  metrics: Record<string, number | string>;
}

export interface Sweep {
  dir: string;
  setting: [string, string][];  // what all points have in common
  axes: string[];
  command?: string;
  failures?: { points: number; error: string }[];  // points without a result
  points: SweepPoint[];
}

export interface Report {
  command: string;
  version: string;
  slos: Slo[];
  metrics: Record<string, [string, string]>;  // unit and definition by name
  runs: Run[];
  sweeps: Sweep[];
  validations: Evidence<Validation>[];
  qualities: Evidence<QualityRow[]>[];
  plans: Evidence<Plan>[];
}

export interface Requests {
  count: number;
  ready: Float64Array;
  queue: Float32Array;
  ttft: Float32Array;
  e2e: Float32Array;
  prompt: Uint32Array;
  output: Uint32Array;
  reused: Uint32Array;
  session: Uint32Array;
  agent: Uint16Array;
  tools: Tools;
}

export interface Tools {
  count: number;
  released: Float64Array;
  taken: Float32Array;
  agent: Uint16Array;
  inner: Uint8Array;
  session: Uint32Array;
}

function bytes(base64: string): ArrayBuffer {
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) out[i] = text.charCodeAt(i);
  return out.buffer;
}

function unpackTools(columns: ToolColumns | undefined): Tools {
  return {
    count: columns?.count ?? 0,
    released: new Float64Array(bytes(columns?.released_s ?? "")),
    taken: new Float32Array(bytes(columns?.taken_s ?? "")),
    agent: new Uint16Array(bytes(columns?.agent ?? "")),
    inner: new Uint8Array(bytes(columns?.inner ?? "")),
    session: new Uint32Array(bytes(columns?.session ?? "")),
  };
}

export function unpack(run: Run): Requests {
  const columns = run.requests;
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
    agent: columns.agent ? new Uint16Array(bytes(columns.agent)) : new Uint16Array(columns.count),
    tools: unpackTools(run.tools),
  };
}

// Seconds per output token after the first; NaN for a single output token.
export function tpot(requests: Requests, i: number): number {
  const more = (requests.output[i] ?? 0) - 1;
  return more > 0 ? ((requests.e2e[i] ?? 0) - (requests.ttft[i] ?? 0)) / more : NaN;
}

export function readReport(): Report {
  const text = document.getElementById("report")?.textContent ?? "";
  return JSON.parse(text) as Report;
}

// The quantile at `fraction` of the ascending `sorted`, nearest rank.
export function quantile(sorted: Float64Array, fraction: number): number {
  if (sorted.length === 0) return NaN;
  const rank = Math.ceil(fraction * sorted.length) - 1;
  return sorted[Math.min(Math.max(rank, 0), sorted.length - 1)] ?? NaN;
}
