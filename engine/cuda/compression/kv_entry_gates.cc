#include "engine/cuda/compression/kv_entry_gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/scoring/cuda/kv_entry_gates.h"

namespace kvtwin::cuda {

Result<KvEntryGates> KvEntryGates::make(const cpu::ScorerWeights& weights, const LlmSpec& llm,
                                        uint32_t rows) {
  KvEntryGates out;
  out.kv_heads_ = llm.kv_heads, out.group_ = llm.query_heads / llm.kv_heads, out.hidden_ = llm.hidden;
  out.trims_ = !weights.trimkv.empty();
  out.rows_ = rows;
  std::vector<__nv_bfloat16> matrices;
  std::vector<float> fields;
  const auto matrix = [&](std::vector<float> all) {
    Layer& layer = out.layers_.emplace_back();
    layer.matrix = matrices.size();
    layer.outputs = static_cast<uint32_t>(all.size() / llm.hidden);
    matrices.resize(matrices.size() + kGateParts * all.size());
    split_gate_weights(all.data(), all.size(), matrices.data() + layer.matrix);
  };
  const auto field = [&](const std::vector<float>& all) {
    out.layers_.back().fields.push_back(fields.size());
    fields.insert(fields.end(), all.begin(), all.end());
  };
  for (const kernels::FastKvzipWeights& w : weights.fastkvzip) {
    std::vector<float> both = w.wq;
    both.insert(both.end(), w.wk.begin(), w.wk.end());
    matrix(std::move(both));
    for (const auto* one : {&w.bq, &w.q_norm, &w.k_norm, &w.k_base, &w.bias}) field(*one);
  }
  for (const kernels::TrimKvWeights& w : weights.trimkv) {
    matrix(w.w1);
    for (const auto* one : {&w.b1, &w.w2, &w.b2}) field(*one);
  }
  if (Result<void> ok = out.upload(matrices, fields); !ok) return tl::unexpected<Error>(ok.error());
  uint64_t widest = 0;
  for (const Layer& layer : out.layers_) widest = std::max<uint64_t>(widest, layer.outputs);
  for (const auto& [buffer, numbers, what] :
       {std::tuple{&out.products_, kGateParts * widest * rows, "products of gates"},
        std::tuple{&out.gates_, uint64_t{rows} * llm.kv_heads, "gates"}}) {
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, numbers * sizeof(float), what,
                                       fmt::format("{} rows, {} numbers each", rows, widest));
    if (!made) return tl::unexpected<Error>(made.error());
    *buffer = std::move(*made);
  }
  return out;
}

Result<void> KvEntryGates::upload(const std::vector<__nv_bfloat16>& matrices,
                                  const std::vector<float>& fields) {
  const auto send = [&](const auto& all, Buffer* to) -> Result<void> {
    const uint64_t bytes = all.size() * sizeof(all[0]);
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, bytes, "weights of gates",
                                       fmt::format("{} layers", layers_.size()));
    if (!made) return tl::unexpected<Error>(made.error());
    *to = std::move(*made);
    return check(cudaMemcpy(to->as<void>(), all.data(), bytes, cudaMemcpyHostToDevice),
                 "copy of weights of gates", "", bytes);
  };
  if (Result<void> ok = send(matrices, &matrices_); !ok) return ok;
  return send(fields, &fields_);
}

const float* KvEntryGates::of(uint32_t layer, const __nv_bfloat16* hidden, const DeviceRows& rows,
                              Matmul* matmul, cudaStream_t stream) const {
  const Layer& own = layers_.at(layer);
  KVT_CHECK(rows.rows <= rows.padded_rows && rows.padded_rows <= rows_);
  const auto field = [&](size_t i) { return fields_.as<float>() + own.fields[i]; };
  matmul->run({matrices_.as<__nv_bfloat16>() + own.matrix, nullptr, kGateParts * own.outputs, hidden_},
              hidden, rows.padded_rows, Matmul::Into::kFloat, products_.as<float>(), stream);
  const auto started = [&](cudaError_t error, const char* kernel) {
    must(error, kernel, 0, [&] { return fmt::format("{} rows, {} heads", rows.rows, kv_heads_); });
  };
  if (trims_) {
    TrimKvArgs gate{products_.as<float>(), rows.rows, kv_heads_, own.outputs};
    gate.b1 = field(0), gate.w2 = field(1), gate.b2 = field(2);
    gate.out = gates_.as<float>();
    started(trimkv_gates(gate, stream), "trimkv_gates");
  } else {
    FastKvzipArgs gate{products_.as<float>(), rows.rows, kv_heads_, group_};
    KVT_CHECK(gate.outputs() == own.outputs);
    gate.bq = field(0), gate.q_norm = field(1), gate.k_norm = field(2), gate.k_base = field(3);
    gate.bias = field(4);
    gate.out = gates_.as<float>();
    started(fastkvzip_gates(gate, stream), "fastkvzip_gates");
  }
  return gates_.as<float>();
}

}  // namespace kvtwin::cuda
