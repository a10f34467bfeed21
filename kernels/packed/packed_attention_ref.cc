#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_attention.h"
#include "kernels/quant/pack.h"
#include "kernels/quant/pack_low_bit.h"

namespace kvtwin::kernels {
namespace {

uint32_t entries_per_piece(Rows rows, const PageShape& shape) {
  return rows == Rows::kGroup2 ? shape.group : 1;
}

size_t piece_bytes(Rows rows, const PageShape& shape) {
  switch (rows) {
    case Rows::kExact:
      return sizeof(float) * shape.head_dim;
    case Rows::kBf16:
      return token_bytes(Format::kBf16, shape);
    case Rows::kFp8:
      return token_bytes(Format::kFp8, shape);
    case Rows::kFp4:
      return token_bytes(Format::kFp4, shape);
    case Rows::kInt4:
      return token_bytes(Format::kInt4, shape);
    case Rows::kInt2:
      return token_bytes(Format::kInt2, shape);
    case Rows::kGroup2:
      break;
  }
  return key_group_bytes(2, shape);
}

std::span<const uint8_t> piece(const PackedSide& side, uint32_t index, const PageShape& shape) {
  const size_t bytes = piece_bytes(side.rows, shape);
  return {static_cast<const uint8_t*>(side.data) + index * bytes, bytes};
}

void unpack_piece(const PackedSide& side, bool keys, uint32_t index, const PageShape& shape,
                  std::span<float> out) {
  const std::span<const uint8_t> bytes = piece(side, index, shape);
  switch (side.rows) {
    case Rows::kExact: {
      const float* const rows = static_cast<const float*>(side.data);
      std::copy_n(rows + size_t{index} * shape.head_dim, shape.head_dim, out.begin());
      return;
    }
    case Rows::kBf16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = from_bf16(load_u16(bytes.data() + 2 * i));
      return;
    case Rows::kFp8:
      return unpack_fp8(bytes, 1, out);
    case Rows::kFp4:
      return unpack_fp4(bytes, out);
    case Rows::kInt4:
      return unpack_token(bytes, 4, shape, out);
    case Rows::kInt2:
      KVT_CHECK(!keys);
      return unpack_token(bytes, 2, shape, out);
    case Rows::kGroup2:
      KVT_CHECK(keys);
      return unpack_key_group(bytes, 2, shape, out);
  }
}

float dot_in_order(std::span<const float> a, const float* b) {
  float sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

// Logits of one group of keys, from its codes.
void folded_logits(std::span<const float> q, std::span<const uint8_t> group, const PageShape& shape,
                   std::span<float> logits) {
  std::vector<float> q_scaled(shape.head_dim);
  float zeros = 0;
  for (uint32_t c = 0; c < shape.head_dim; ++c) {
    const Affine shared = key_affine(group, 2, shape, c);
    q_scaled[c] = q[c] * value_of(1, {shared.scale, 0});
    zeros += q[c] * value_of(0, shared);
  }
  for (uint32_t t = 0; t < shape.group; ++t) {
    float sum = 0;
    for (uint32_t c = 0; c < shape.head_dim; ++c) {
      sum += static_cast<float>(key_code(group, 2, shape, t, c)) * q_scaled[c];
    }
    logits[t] = sum + zeros;
  }
}

std::vector<float> logits_of(std::span<const float> q, const PackedRun& run, const PageShape& shape) {
  std::vector<float> logits(run.kv_entries);
  const uint32_t each = entries_per_piece(run.k.rows, shape);
  KVT_CHECK(run.kv_entries % each == 0);
  std::vector<float> rows(size_t{each} * shape.head_dim);
  for (uint32_t at = 0; at < run.kv_entries; at += each) {
    if (run.k.rows == Rows::kGroup2) {
      folded_logits(q, piece(run.k, at / each, shape), shape, std::span(logits).subspan(at, each));
      continue;
    }
    unpack_piece(run.k, true, at / each, shape, rows);
    for (uint32_t t = 0; t < each; ++t)
      logits[at + t] = dot_in_order(q, rows.data() + size_t{t} * shape.head_dim);
  }
  return logits;
}

}  // namespace

void unpack_side(const PackedSide& side, bool keys, uint32_t kv_entries, const PageShape& shape,
                 std::span<float> out) {
  const uint32_t each = entries_per_piece(side.rows, shape);
  KVT_CHECK(kv_entries % each == 0 && out.size() == size_t{kv_entries} * shape.head_dim);
  for (uint32_t at = 0; at < kv_entries; at += each) {
    unpack_piece(side, keys, at / each, shape,
                 out.subspan(size_t{at} * shape.head_dim, size_t{each} * shape.head_dim));
  }
}

Partial attend_run(std::span<const float> q, float scale, const PackedRun& run, const PageShape& shape) {
  KVT_CHECK(q.size() == shape.head_dim);
  Partial partial{0, 0, std::vector<float>(shape.head_dim, 0.0f)};
  if (run.kv_entries == 0) return partial;
  std::vector<float> logits = logits_of(q, run, shape);
  for (float& logit : logits) logit *= scale;
  partial.m = *std::max_element(logits.begin(), logits.end());
  const uint32_t each = entries_per_piece(run.v.rows, shape);
  KVT_CHECK(run.kv_entries % each == 0);
  std::vector<float> rows(size_t{each} * shape.head_dim);
  for (uint32_t at = 0; at < run.kv_entries; ++at) {
    if (at % each == 0) unpack_piece(run.v, false, at / each, shape, rows);
    const float weight = std::exp(logits[at] - partial.m);
    partial.l += weight;
    const float* const row = rows.data() + size_t{at % each} * shape.head_dim;
    for (uint32_t c = 0; c < shape.head_dim; ++c) partial.o[c] += weight * row[c];
  }
  return partial;
}

Partial merge(const Partial& a, const Partial& b) {
  if (a.l == 0) return b;
  if (b.l == 0) return a;
  Partial out{std::max(a.m, b.m), 0, std::vector<float>(a.o.size())};
  const float wa = std::exp(a.m - out.m), wb = std::exp(b.m - out.m);
  out.l = wa * a.l + wb * b.l;
  for (size_t c = 0; c < out.o.size(); ++c) out.o[c] = wa * a.o[c] + wb * b.o[c];
  return out;
}

void attend_packed(std::span<const float> q, float scale, std::span<const PackedRun> runs,
                   const PageShape& shape, std::span<float> out) {
  KVT_CHECK(out.size() == shape.head_dim);
  Partial all;
  for (const PackedRun& run : runs) all = merge(all, attend_run(q, scale, run, shape));
  std::fill(out.begin(), out.end(), 0.0f);
  if (all.l == 0) return;
  for (size_t c = 0; c < out.size(); ++c) out[c] = all.o[c] / all.l;
}

}  // namespace kvtwin::kernels
