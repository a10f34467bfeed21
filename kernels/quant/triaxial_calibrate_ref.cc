#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/quant/pack.h"
#include "kernels/quant/triaxial_calibrate.h"

namespace kvtwin::kernels {
namespace {

// Semantic axis of a tag: docs/design/methods/triaxialkv.md#tags, code = t * 14 + m * 7 + s, instruction
// first.
bool is_instruction(uint32_t tag) { return tag % 7 == 0; }

// K and V of one KV head as [KV entries][head_dim].
struct HeadRows {
  std::vector<float> k, v;
};

HeadRows head_rows(const AttentionCapture& c, uint32_t head) {
  HeadRows rows;
  const auto take = [&](std::span<const float> from, std::vector<float>* to) {
    to->reserve(size_t{c.kv_entries} * c.head_dim);
    for (uint32_t p = 0; p < c.kv_entries; ++p) {
      const auto row = from.subspan((size_t{p} * c.kv_heads + head) * c.head_dim, c.head_dim);
      to->insert(to->end(), row.begin(), row.end());
    }
  };
  take(c.k, &rows.k);
  take(c.v, &rows.v);
  return rows;
}

void round_token(std::span<float> row, uint32_t bits, const PageShape& shape) {
  std::vector<uint8_t> packed(token_bytes(bits == 2 ? Format::kInt2 : Format::kInt4, shape));
  pack_token(row, bits, shape, packed);
  unpack_token(packed, bits, shape, row);
}

// Packs and unpacks the listed KV entries, in order.
void round_entries(std::span<const uint32_t> kv_entries, uint32_t bits, const PageShape& shape,
                   HeadRows* rows) {
  const size_t d = shape.head_dim;
  const size_t grouped = bits == 2 ? kv_entries.size() / shape.group * shape.group : 0;
  std::vector<float> group(shape.group * d);
  std::vector<uint8_t> packed(key_group_bytes(2, shape));
  for (size_t at = 0; at < grouped; at += shape.group) {
    for (size_t t = 0; t < shape.group; ++t) std::copy_n(&rows->k[kv_entries[at + t] * d], d, &group[t * d]);
    pack_key_group(group, 2, shape, packed);
    unpack_key_group(packed, 2, shape, group);
    for (size_t t = 0; t < shape.group; ++t) std::copy_n(&group[t * d], d, &rows->k[kv_entries[at + t] * d]);
  }
  for (size_t i = 0; i < kv_entries.size(); ++i) {
    const std::span<float> k(&rows->k[kv_entries[i] * d], d), v(&rows->v[kv_entries[i] * d], d);
    if (i >= grouped) round_token(k, 4, shape);
    round_token(v, i < grouped ? 2 : 4, shape);
  }
}

// Attention outputs of one query head: [rows][head_dim].
std::vector<double> attend(const AttentionCapture& c, uint32_t query_head, const HeadRows& rows) {
  std::vector<double> out(size_t{c.rows} * c.head_dim, 0.0), weights(c.kv_entries);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  for (uint32_t i = 0; i < c.rows; ++i) {
    const auto q = c.q.subspan((size_t{i} * c.query_heads + query_head) * c.head_dim, c.head_dim);
    const uint32_t seen = std::min(c.kv_entries, c.first_position + i + 1);
    double top = -INFINITY, sum = 0;
    for (uint32_t p = 0; p < seen; ++p) {
      double logit = 0;
      for (uint32_t x = 0; x < c.head_dim; ++x)
        logit += double{q[x]} * double{rows.k[size_t{p} * c.head_dim + x]};
      weights[p] = logit * scale;
      top = std::max(top, weights[p]);
    }
    for (uint32_t p = 0; p < seen; ++p) sum += weights[p] = std::exp(weights[p] - top);
    for (uint32_t p = 0; p < seen; ++p) {
      for (uint32_t x = 0; x < c.head_dim; ++x)
        out[size_t{i} * c.head_dim + x] += weights[p] / sum * double{rows.v[size_t{p} * c.head_dim + x]};
    }
  }
  return out;
}

double mean_square(const std::vector<double>& a, const std::vector<double>& b, uint32_t rows) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum / rows;
}

}  // namespace

TagLosses measure_tag_losses(const AttentionCapture& c) {
  KVT_CHECK(c.rows > 0 && c.kv_heads > 0 && c.query_heads % c.kv_heads == 0);
  KVT_CHECK(c.q.size() == size_t{c.rows} * c.query_heads * c.head_dim);
  KVT_CHECK(c.k.size() == size_t{c.kv_entries} * c.kv_heads * c.head_dim && c.v.size() == c.k.size());
  KVT_CHECK(c.tags.size() == c.kv_entries);
  const PageShape shape{c.group, c.head_dim, c.group};
  std::array<std::vector<uint32_t>, kTagCodes> kv_entries;
  for (uint32_t p = 0; p < c.kv_entries; ++p) kv_entries.at(c.tags[p]).push_back(p);
  TagLosses losses{};
  for (uint32_t tag = 0; tag < kTagCodes; ++tag)
    losses[tag].count = static_cast<uint32_t>(kv_entries[tag].size());
  const uint32_t per_kv_head = c.query_heads / c.kv_heads;
  for (uint32_t head = 0; head < c.kv_heads; ++head) {
    const HeadRows exact = head_rows(c, head);
    std::vector<std::vector<double>> expected;
    for (uint32_t g = 0; g < per_kv_head; ++g) expected.push_back(attend(c, head * per_kv_head + g, exact));
    for (uint32_t tag = 0; tag < kTagCodes; ++tag) {
      if (kv_entries[tag].empty()) continue;
      for (const uint32_t bits : {2u, 4u}) {
        HeadRows rounded = exact;
        round_entries(kv_entries[tag], bits, shape, &rounded);
        double& worst = bits == 2 ? losses[tag].two_bits : losses[tag].four_bits;
        for (uint32_t g = 0; g < per_kv_head; ++g) {
          const auto got = attend(c, head * per_kv_head + g, rounded);
          worst = std::max(worst, mean_square(expected[g], got, c.rows));
        }
      }
    }
  }
  return losses;
}

TagTable combine_tag_losses(std::span<const std::vector<TagLosses>> losses) {
  KVT_CHECK(!losses.empty() && !losses[0].empty());
  TagTable table;
  for (uint32_t tag = 0; tag < kTagCodes; ++tag) {
    TagTable::Entry& entry = table.tags[tag];
    std::vector<uint32_t> counts;
    for (const TagLosses& request : losses[0]) counts.push_back(request[tag].count);
    if (is_instruction(tag)) {
      // The lower median for an even number of requests, so that counts are integers.
      std::sort(counts.begin(), counts.end());
      entry.count = counts[(counts.size() - 1) / 2];
    } else {
      for (const uint32_t count : counts) entry.count += count;
    }
    for (const std::vector<TagLosses>& layer : losses) {
      KVT_CHECK(layer.size() == losses[0].size());
      double two = 0, four = 0;
      uint32_t present = 0;
      for (const TagLosses& request : layer) {
        if (request[tag].count == 0) continue;
        ++present;
        two += request[tag].two_bits;
        four += request[tag].four_bits;
      }
      if (present == 0) continue;
      entry.two_bits += two / present;
      entry.four_bits += four / present;
    }
  }
  return table;
}

}  // namespace kvtwin::kernels
