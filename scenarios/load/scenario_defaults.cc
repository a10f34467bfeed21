// The defaults, in the form of a scenario file. Those of vLLM v1 are of version 0.19 with async scheduling.

#include <google/protobuf/text_format.h>

#include "engine/base/check.h"
#include "scenarios/load/scenario.h"

namespace kvtwin {
namespace {

constexpr char kDefaults[] = R"pb(
  name: ""
  description: ""
  seed: 42
  model { name: "" weights: "" context_window: 0 }
  hardware { node: "" gpus: 0 nodes: 1 host_memory_bytes: 0 }
  engines { count: 1 tensor_parallel: 1 routing: "auto" prefill: 0 }
  memory {
    page_tokens: 16
    gpu_pages: 0
    gpu_fraction: 0.9
    host_bytes: 0
    disk_bytes: 0
    reserved_pages: 0
    capacity: "vllm"
  }
  limits {
    preset: ""
    requests_max: 256
    step_tokens_max: 2048
    chunk_tokens_max: 0
    steps_in_flight_max: 1
    batch_order: "decode_first"
    admission: "watermark"
    watermark_pages: 0
    page_order: "lowest_first"
    preemption: "recompute"
    prefix_cache: true
    evict_batch_pages: 64
    offload_batch_pages: 0
    offload_pages_target: 0
    spill_pages_target: 0
  }
  policies {
    scorer: "none"
    budget: "all"
    layout: "paged"
    precision: "bf16"
    placement: ""
    retrieval: "all"
    partition: "uniform"
    identity: "shared"
    prefix_eviction: "lru"
    precision_options { group: 32 residual_tokens: 128 tag_map: "" bits: 0 ageing: "ignore" }
    partition_options {
      uniform_splits: 0
      ctas_per_sm: 2
      priced: "ragged"
      flash_splits_max: 128
      tile: 64
      aot_weight: "group_max"
      aot_exact_grid: false
      aot_waves: 1
      profile: ""
      alpha: 2
      plan_ns: 0
    }
    budget_options {
      sinks: 4
      window: 32
      chunk_tokens: 2048
      interval: 1
      ratio: 1
      kv_entries: 0
      sinks_free: false
      pyramid_beta: 20
      alpha: 2
      relative: false
      decode_reserve: 0
      retained_min: 512
      uniform_depth: false
      profile: ""
    }
    layout_options { heads_per_group: 0 clustering: "adjacent" }
  }
  trace {
    path: ""
    format: "auto"
    prefix_sharing: "none"
    block_tokens: 0
    infer_sessions: false
    jitter_ns: 0
    all_files: false
  }
  replay {
    mode: "auto"
    arrivals: "recorded"
    sessions_per_s: 1
    population: 1
    arrival_scale: 1
    tool_scale: 1
    think_scale: 1
    delay_scale: 1
    think_cap_s: 0
    replicas: 1
    sessions_max: 0
    requests_max: 0
    on_reject: "fail_session"
    retries_max: 3
    oversized: "refuse"
    roles: true
  }
  cost {
    profile: ""
    host_ns_per_step: 0
    capture_tokens_max: 0
    first_step_host_ns: 0
    group_ns: 0
    compressions: "roofline"
    reclaim_ns: 800
    front_end_request_ns: 0
    front_end_token_ns: 0
  }
  simulation { fidelity: "auto" coalesce: true retained: "fixed" recorded_run: "" force_outcomes: false }
  backend: "sim"
  clock: ""
  cpu { checkpoint: "" decode: "forced" sleep: false scorer_weights: "" judge_tokens: "soft" }
  cuda { timings: false }
)pb";

// Host time of a step: 0.15 to 0.2 ms between the graphs of two steps with asynchronous scheduling
// (vllm-project/vllm#11133, #10634). The front end is assumed. Per request: a client saw 8 to 12 ms more TTFT
// than the server on a laptop (vllm-project/vllm#54628); BLIS fits 1 ms in the median to its servers of
// Llama-3.1-8B and 6 ms to all (inference-sim/inference-sim, defaults.yaml). Per prompt token: 500,000
// tokens/s of one core (andyluo7.github.io, "CPU-GPU co-design for agentic inference"); BLIS fits 2 to 4 us.
//
// max_cudagraph_capture_size 512: 1, 2, 4, then every 8 up to 256, then every 16.
constexpr char kVllmV1[] = R"pb(
  memory { reserved_pages: 1 }
  limits {
    requests_max: 256
    step_tokens_max: 2048
    steps_in_flight_max: 2
    batch_order: "decode_first"
    admission: "full_prompt"
    page_order: "oldest_first"
    evict_batch_pages: 1
    capture_sizes: [
      1,   2,   4,   8,   16,  24,  32,  40,  48,  56,  64,  72,  80,  88,  96,  104, 112,
      120, 128, 136, 144, 152, 160, 168, 176, 184, 192, 200, 208, 216, 224, 232, 240, 248,
      256, 272, 288, 304, 320, 336, 352, 368, 384, 400, 416, 432, 448, 464, 480, 496, 512
    ]
  }
  cost { host_ns_per_step: 200000 front_end_request_ns: 3000000 front_end_token_ns: 2000 }
)pb";

v1::Scenario parsed(const char* text) {
  v1::Scenario out;
  KVT_CHECK(google::protobuf::TextFormat::ParseFromString(text, &out));
  return out;
}

}  // namespace

std::vector<std::string> preset_names() { return {"", "vllm_v1"}; }

v1::Scenario default_scenario(std::string_view preset) {
  v1::Scenario out = parsed(kDefaults);
  if (preset == "vllm_v1") out.MergeFrom(parsed(kVllmV1));
  return out;
}

}  // namespace kvtwin
