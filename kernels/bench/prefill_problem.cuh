// Inputs of a prefill step on the device that expose errors: pages in random order, NaN wherever nothing was
// written and in rows between requests, q, k and v as columns of one matrix, random numbers from a seed, and
// the expected result in double precision.

#ifndef KVTWIN_KERNELS_BENCH_PREFILL_PROBLEM_CUH_
#define KVTWIN_KERNELS_BENCH_PREFILL_PROBLEM_CUH_

#include "kernels/attention/attention_prefill.h"
#include "kernels/bench/decode_problem.cuh"

namespace kvtwin::test {

struct PrefillRequest {
  uint32_t rows = 0;
  uint32_t past = 0;
};

struct PrefillProblem {
  PrefillShape shape;
  PrefillArgs args;
  std::vector<PrefillSequence> rows;
  std::vector<std::vector<float>> keys, values;  // of each sequence, [KV entries][head_dim]
  std::vector<__nv_bfloat16> qkv;                // [rows][q_stride]
  DeviceArray<__nv_bfloat16> pool, matrix, out;
  DeviceArray<float> lse;
  DeviceArray<uint32_t> pages;
  DeviceArray<PrefillSequence> table;
  DeviceArray<char> plan;

  // One head per page: head h retains past * (h + 1) / kv_heads KV entries. Otherwise all heads retain all
  // and share pages.
  PrefillProblem(PrefillShape wanted, const std::vector<PrefillRequest>& requests, bool in_pages,
                 uint64_t seed)
      : shape(wanted), in_pages_(in_pages) {
    std::mt19937_64 random(seed);
    const uint32_t d = shape.head_dim, heads = shape.kv_heads * shape.group;
    shape.q_stride = shape.kv_stride = (heads + 2 * shape.kv_heads) * d + 8;
    std::vector<uint32_t> numbers;
    for (const PrefillRequest& request : requests) {
      for (uint32_t h = 0; h < shape.kv_heads; ++h) {
        const bool own = shape.heads_per_page == 1;
        const uint32_t past = own ? request.past * (h + 1) / shape.kv_heads : request.past;
        const uint32_t kv_entries = past + (in_pages ? request.rows : 0);
        if (own || h == 0) {
          first_page_ = static_cast<uint32_t>(numbers.size());
          numbers.resize(numbers.size() + (kv_entries + shape.page_tokens - 1) / shape.page_tokens);
        }
        rows.push_back({shape.rows, request.rows, h, past, first_page_, own ? 0 : h});
      }
      shape.rows += request.rows + 1;  // one unused row after each request
    }
    shape.sequences = static_cast<uint32_t>(rows.size());
    draw_numbers(&random);
    place(&numbers, &random);
    args.scale = 1.f / std::sqrt(static_cast<float>(d));
    plan = DeviceArray<char>(std::vector<char>(prefill_plan_bytes(shape), 0x5a));
    args.plan = plan.get();
    poison();
  }

  void poison() {
    const size_t row_heads = size_t{shape.rows} * shape.kv_heads * shape.group;
    out = DeviceArray<__nv_bfloat16>(
        std::vector<__nv_bfloat16>(row_heads * shape.head_dim, __float2bfloat16(NAN)));
    lse = DeviceArray<float>(std::vector<float>(row_heads, NAN));
    args.out = out.get(), args.lse = lse.get();
  }

  // The largest difference from the expected result, relative to the row's largest expected number, over all
  // rows. Infinite if an unused row was written, or a used one was not. `every`: checks only every so many
  // rows (and the first and last of a request).
  double error(uint32_t every = 1) const {
    if (shape.rows == 0) return 0;
    const std::vector<__nv_bfloat16> got = out.read();
    const std::vector<float> logs = lse.read();
    const uint32_t heads = shape.kv_heads * shape.group, d = shape.head_dim;
    std::vector<bool> owned(shape.rows);
    double worst = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (uint32_t t = 0; t < rows[i].rows; ++t) {
        owned[rows[i].row + t] = true;
        if (t % every != 0 && t + 1 != rows[i].rows) continue;
        for (uint32_t j = 0; j < shape.group; ++j) {
          const size_t at = size_t{rows[i].row + t} * heads + rows[i].head * shape.group + j;
          worst = std::max(worst, row_error(i, t, at, &got[at * d], logs[at]));
        }
      }
    }
    for (uint32_t r = 0; r < shape.rows; ++r) {
      if (!owned[r] && !std::isnan(__bfloat162float(got[size_t{r} * heads * d]))) return INFINITY;
    }
    return worst;
  }

 private:
  bool in_pages_;
  uint32_t first_page_ = 0;

  void draw_numbers(std::mt19937_64* random) {
    std::normal_distribution<float> normal;
    qkv.assign(size_t{shape.rows} * shape.q_stride, __float2bfloat16(NAN));
    for (const PrefillSequence& s : rows) {
      const size_t kv_entries = s.past + s.rows, width = size_t{shape.group} * shape.head_dim;
      for (auto* const side : {&keys, &values}) {
        side->emplace_back(kv_entries * shape.head_dim);
        for (float& value : side->back()) value = __bfloat162float(__float2bfloat16(normal(*random)));
      }
      for (uint32_t t = 0; t < s.rows; ++t) {
        for (size_t c = 0; c < width; ++c) {
          qkv[size_t{s.row + t} * shape.q_stride + s.head * width + c] =
              __float2bfloat16(2 * normal(*random));
        }
      }
    }
  }

  void place(std::vector<uint32_t>* numbers, std::mt19937_64* random) {
    const uint32_t d = shape.head_dim, page = shape.page_tokens;
    const size_t block = size_t{2} * d * page;
    std::vector<uint32_t> shuffled(numbers->size() + 3);  // some pages are unused
    for (uint32_t p = 0; p < shuffled.size(); ++p) shuffled[p] = p;
    std::shuffle(shuffled.begin(), shuffled.end(), *random);
    std::copy_n(shuffled.begin(), numbers->size(), numbers->begin());
    shape.pool_blocks = static_cast<uint32_t>(shuffled.size()) * shape.heads_per_page;
    std::vector<__nv_bfloat16> kv_entries(shape.pool_blocks * block, __float2bfloat16(NAN));
    const size_t k_at = size_t{shape.kv_heads} * shape.group * d, v_at = k_at + size_t{shape.kv_heads} * d;
    for (size_t i = 0; i < rows.size(); ++i) {
      const PrefillSequence& s = rows[i];
      const uint32_t paged = s.past + (in_pages_ ? s.rows : 0);
      for (uint32_t t = 0; t < s.past + s.rows; ++t) {
        for (uint32_t c = 0; c < d; ++c) {
          const __nv_bfloat16 k = __float2bfloat16(keys[i][size_t{t} * d + c]);
          const __nv_bfloat16 v = __float2bfloat16(values[i][size_t{t} * d + c]);
          if (t < paged) {
            const size_t number = (*numbers)[s.table + t / page];
            const uint32_t slot = t % page, chunk = (c / 8) ^ (slot & 7);
            const size_t at =
                (number * shape.heads_per_page + s.column) * block + size_t{slot} * d + chunk * 8;
            kv_entries[at + c % 8] = k, kv_entries[at + size_t{page} * d + c % 8] = v;
          } else {
            const size_t row = size_t{s.row + t - s.past} * shape.kv_stride + size_t{s.head} * d + c;
            qkv[row + k_at] = k, qkv[row + v_at] = v;
          }
        }
      }
    }
    pool = DeviceArray<__nv_bfloat16>(kv_entries);
    matrix = DeviceArray<__nv_bfloat16>(qkv);
    pages = DeviceArray<uint32_t>(*numbers);
    table = DeviceArray<PrefillSequence>(rows);
    args.pool = pool.get(), args.pages = pages.get(), args.table = table.get(), args.q = matrix.get();
    if (!in_pages_) args.k = matrix.get() + k_at, args.v = matrix.get() + v_at;
  }

  double row_error(size_t i, uint32_t t, size_t row_head, const __nv_bfloat16* got, float log) const {
    const uint32_t d = shape.head_dim, heads = shape.kv_heads * shape.group, seen = rows[i].past + t + 1;
    const __nv_bfloat16* const query = &qkv[row_head / heads * shape.q_stride + row_head % heads * size_t{d}];
    std::vector<float> q(d);
    std::vector<double> weight(seen), sum(d);
    for (uint32_t c = 0; c < d; ++c) q[c] = __bfloat162float(query[c]);
    for (uint32_t u = 0; u < seen; ++u) {
      double lanes[8] = {};
      for (uint32_t c = 0; c < d; ++c) {
        lanes[c % 8] += static_cast<double>(q[c]) * static_cast<double>(keys[i][size_t{u} * d + c]);
      }
      for (const double lane : lanes) weight[u] += lane / std::sqrt(static_cast<double>(d));
    }
    const double most = *std::max_element(weight.begin(), weight.end());
    double total = 0;
    for (double& w : weight) total += w = std::exp(w - most);
    for (uint32_t u = 0; u < seen; ++u) {
      for (uint32_t c = 0; c < d; ++c) {
        sum[c] += weight[u] / total * static_cast<double>(values[i][size_t{u} * d + c]);
      }
    }
    double size = 1e-3, off = 0;
    for (uint32_t c = 0; c < d; ++c) {
      const auto value = static_cast<double>(__bfloat162float(got[c]));
      size = std::max(size, std::abs(sum[c]));
      off = std::isnan(value) ? INFINITY : std::max(off, std::abs(value - sum[c]));
    }
    const double log_off = std::abs(static_cast<double>(log) - (most + std::log(total)));
    return std::isnan(log_off) ? INFINITY : std::max(off / size, log_off);
  }
};

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_PREFILL_PROBLEM_CUH_
