#include "models/cost_tables/derived_device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "models/cost/chunk_tiles.h"
#include "models/cost/roofline_cost.h"
#include "models/cost_tables/measured_cost.h"

namespace kvtwin {
namespace {

// Starting and ending a kernel over chunks, in units of ChunkTiles (measured_cost.cc).
constexpr double kChunkStart = 2;

bool plain_dense(const LlmSpec& llm) {
  return llm.moe_layers() == 0 && llm.sliding_layers.empty() && llm.weights.dtype == NumberFormat::kBf16;
}

uint32_t sms_of(const DeviceSpec& device) { return static_cast<uint32_t>(device.sm_count.value); }

double kv_values(const LlmSpec& llm) { return static_cast<double>(llm.kv_heads) * llm.head_dim; }

// The roofline of one operation, in ns of one layer.
class Roofline {
 public:
  explicit Roofline(const ModelOnGpu& on) : cost_(on.llm, on.device, 1, HostTime{}) {}

  double of(std::string_view name, const StepShape& shape) {
    for (const StepPart& part : cost_.ops(shape))
      if (name == part.name) return static_cast<double>(part.each) / kTicksPerNs;
    KVT_CHECK(false && "the roofline has an operation of every table");
    return 0;
  }
  double dense(std::string_view name, uint32_t rows) {
    StepShape shape;
    shape.tokens = shape.tokens_padded = shape.logits_rows = rows;
    return of(name, shape);
  }
  double decodes(uint32_t requests, double kv_entries) {
    StepShape shape;
    shape.tokens = shape.tokens_padded = shape.decodes = requests;
    shape.decode_context_sum = static_cast<uint64_t>(kv_entries);
    return of("attention", shape);
  }

 private:
  RooflineCost cost_;
};

// L2 of the GPUs with 132 SMs, bytes (NVIDIA H100 architecture white paper, SXM5). What fits there does not
// wait for memory: on an H100 and an H200 the activation of up to 512 tokens of Llama-3.1-8B takes equally
// long.
constexpr double kL2Bytes = 50e6;

// The part of a matrix product's time that memory bandwidth does not change, inside a captured step: the four
// products of a layer of Llama-3.1-8B over 8 tokens take 168.4 us on an H100 and 122.4 us on an H200
// (models/measured). Single launches, which rooflines describe, take more.
constexpr double kGemmFixedNs = 3500;

// As rooflines compare them. Formats of KV have tables of their own, so KV is bf16.
ModelOnGpu compared(ModelOnGpu on) {
  on.llm.kv = TensorFormat{};
  on.device.gemm_fixed_ns.value = std::min(on.device.gemm_fixed_ns.value, kGemmFixedNs);
  on.device.gemm_read_fraction = {};  // kGemmFixedNs was fitted with the rate of a kernel that only reads
  return on;
}

class Derivation {
 public:
  Derivation(const ModelOnGpu& source, const ModelOnGpu& target)
      : source_(compared(source)),
        target_(compared(target)),
        from_(source_),
        between_({target_.llm, source_.device}),
        to_(target_),
        from_shapes_(source.llm),
        to_shapes_(target.llm),
        from_tiles_(source.llm.kv_heads, source.llm.query_heads / source.llm.kv_heads, sms_of(source.device)),
        to_tiles_(target.llm.kv_heads, target.llm.query_heads / target.llm.kv_heads, sms_of(target.device)) {}

  // Empty: a table of another model, or of copies over another link.
  std::optional<MeasuredTable> table(const MeasuredTable& measured);

 private:
  using Factor = std::function<double(uint32_t rows, uint32_t context)>;

  bool dense(const MeasuredTable& measured, MeasuredTable* out);
  bool attention(const MeasuredTable& measured, MeasuredTable* out);
  bool host_or_clock(const MeasuredTable& measured, MeasuredTable* out) const;
  bool same_link() const {
    return source_.device.pcie_gen.value == target_.device.pcie_gen.value &&
           source_.device.pcie_lanes.value == target_.device.pcie_lanes.value;
  }
  static void scale(MeasuredTable* table, const Factor& factor);
  double chunk_factor(uint32_t tokens, uint32_t context);

  const ModelOnGpu source_, target_;
  Roofline from_, between_, to_;  // between_: the target's model on the source's GPU
  const MeasuredShapes from_shapes_, to_shapes_;
  ChunkTiles from_tiles_, to_tiles_;
};

void Derivation::scale(MeasuredTable* table, const Factor& factor) {
  for (size_t i = 0; i < table->at.size(); ++i) {
    const double f = factor(table->rows[i], table->context.empty() ? 0 : table->context[i]);
    Measured& one = table->at[i];
    one = {one.us * f, one.p10 * f * (1 - kDerivedSpread), one.p90 * f * (1 + kDerivedSpread)};
  }
}

bool Derivation::dense(const MeasuredTable& measured, MeasuredTable* out) {
  using Shape = std::string MeasuredShapes::*;
  struct Row {
    const char *operation, *roofline;
    Shape shape;
    double bytes_per_token;  // of operations without weights, whose tensors may lie in L2; else 0
  };
  const LlmSpec& llm = target_.llm;
  const double hidden = 2.0 * llm.hidden, mlp = 2.0 * llm.intermediate;
  const double heads = 2.0 * (llm.query_heads + 2.0 * llm.kv_heads) * llm.head_dim;
  const Row rows_of[] = {{"qkv", "qkv", &MeasuredShapes::qkv, 0},
                         {"attention out", "output", &MeasuredShapes::attention_out, 0},
                         {"gate up", "gate_up", &MeasuredShapes::gate_up, 0},
                         {"down", "down", &MeasuredShapes::down, 0},
                         {"logits", "lm_head", &MeasuredShapes::logits, 0},
                         {"sample", "sampler", &MeasuredShapes::vocab, 0},
                         {"embed", "embedding", &MeasuredShapes::hidden, 2 * hidden},
                         {"norm", "attention_norm", &MeasuredShapes::hidden, 4 * hidden},
                         {"activation", "activation", &MeasuredShapes::intermediate, 3 * mlp},
                         {"append", "rope_append", &MeasuredShapes::heads, 2 * heads}};
  for (const Row& row : rows_of) {
    if (measured.operation != row.operation || measured.shape != from_shapes_.*row.shape) continue;
    out->shape = to_shapes_.*row.shape;
    scale(out, [&](uint32_t rows, uint32_t) {
      const double between = between_.dense(row.roofline, rows);
      const double by_gpu = to_.dense(row.roofline, rows) / between;
      const double bytes = rows * row.bytes_per_token;
      const double in_l2 = bytes > 0 ? std::min(1.0, kL2Bytes / bytes) : 0;
      return between / from_.dense(row.roofline, rows) * (by_gpu + (1 - by_gpu) * in_l2);
    });
    return true;
  }
  return false;
}

// One SM computes tiles of keys at its part of the GPU's arithmetic, in a time that grows with head_dim.
double Derivation::chunk_factor(uint32_t tokens, uint32_t context) {
  const ChunkShape chunk{tokens, context, 0};
  const auto rate = [](const DeviceSpec& device) {
    return device.bf16_flop_per_s.value * device.prefill_fraction.value / device.sm_count.value;
  };
  return (to_tiles_.makespan({&chunk, 1}) + kChunkStart) / (from_tiles_.makespan({&chunk, 1}) + kChunkStart) *
         target_.llm.head_dim / source_.llm.head_dim * rate(source_.device) / rate(target_.device);
}

bool Derivation::attention(const MeasuredTable& measured, MeasuredTable* out) {
  if (measured.shape != from_shapes_.heads) return false;
  const std::string& operation = measured.operation;
  const double entry = kv_values(target_.llm) / kv_values(source_.llm);  // bytes of a KV entry there and here
  out->shape = to_shapes_.heads;
  if (operation == "chunk attention") {
    scale(out, [this](uint32_t tokens, uint32_t context) { return chunk_factor(tokens, context); });
  } else if (operation.starts_with("decode attention")) {
    scale(out, [&](uint32_t requests, uint32_t kv_entries) {
      return to_.decodes(requests, kv_entries / entry) / from_.decodes(requests, kv_entries);
    });
    for (uint32_t& kv_entries : out->context)
      kv_entries = std::max(1u, static_cast<uint32_t>(std::lround(kv_entries / entry)));
  } else if (operation.starts_with("chunk packing")) {
    const double bandwidth = source_.device.hbm_bytes_per_s.value / target_.device.hbm_bytes_per_s.value;
    scale(out, [&](uint32_t, uint32_t) { return entry * bandwidth; });
  } else {
    return false;
  }
  return true;
}

bool Derivation::host_or_clock(const MeasuredTable& measured, MeasuredTable* out) const {
  if (measured.shape != from_shapes_.model) return false;
  const std::string& operation = measured.operation;
  out->shape = to_shapes_.model;
  const bool by_layers = operation == "launched host" || operation == "chunk host";
  const double layers = static_cast<double>(target_.llm.layers) / source_.llm.layers;
  if (operation.find("host") != std::string::npos)
    scale(out, [&](uint32_t, uint32_t) { return by_layers ? layers : 1; });
  return true;  // of the clock: relative effects
}

std::optional<MeasuredTable> Derivation::table(const MeasuredTable& measured) {
  if (measured.operation.starts_with("copy ")) {
    if (same_link()) return measured;
    return {};
  }
  MeasuredTable out = measured;
  if (dense(measured, &out) || attention(measured, &out) || host_or_clock(measured, &out)) return out;
  return {};
}

// The less, the nearer.
using Distance = std::tuple<bool, bool, double>;

Distance distance(const ModelOnGpu& source, const ModelOnGpu& target) {
  return {source.device.name != target.device.name, source.llm.name != target.llm.name,
          std::abs(std::log(source.device.hbm_bytes_per_s.value / target.device.hbm_bytes_per_s.value))};
}

}  // namespace

bool can_derive(const ModelOnGpu& source, const ModelOnGpu& target) {
  return plain_dense(source.llm) && plain_dense(target.llm) && sms_of(source.device) > 0 &&
         sms_of(source.device) == sms_of(target.device);
}

MeasuredDevice derive_device(const MeasuredDevice& measured, const ModelOnGpu& source,
                             const ModelOnGpu& target) {
  KVT_CHECK(can_derive(source, target));
  Derivation derivation(source, target);
  const auto derived = [&](const std::vector<MeasuredTable>& tables) {
    std::vector<MeasuredTable> out;
    for (const MeasuredTable& table : tables)
      if (auto one = derivation.table(table)) out.push_back(std::move(*one));
    return out;
  };
  MeasuredDevice out = measured;
  out.gpu = target.device.title, out.model = target.llm.name;
  out.tables = derived(measured.tables);
  for (MeasuredKv& format : out.formats) format.tables = derived(format.tables);
  return out;
}

std::optional<ModelOnGpu> measured_on(const MeasuredDevice& measured, const Catalog& catalog) {
  const Result<LlmSpec> llm = catalog.llm(measured.model);
  if (!llm) return {};
  for (const std::string& name : catalog.names("device")) {
    const Result<DeviceSpec> device = catalog.device(name);
    if (device && device->title == measured.gpu) return ModelOnGpu{*llm, *device};
  }
  return {};
}

std::optional<std::string> nearest_profile(const std::string& folder, const ModelOnGpu& target,
                                           const Catalog& catalog) {
  std::vector<std::pair<Distance, std::string>> near;
  for (const std::string& file : profile_files(folder)) {
    const Result<MeasuredDevice> measured = load_measured_device(file);
    if (!measured) continue;
    const std::optional<ModelOnGpu> source = measured_on(*measured, catalog);
    if (source && can_derive(*source, target)) near.emplace_back(distance(*source, target), file);
  }
  if (near.empty()) return {};
  return std::min_element(near.begin(), near.end())->second;
}

}  // namespace kvtwin
