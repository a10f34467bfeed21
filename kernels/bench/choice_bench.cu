// Choosing pages: Llama-3.1-8B, one layer, pages of 32, 32 of them chosen (FreeKV's budget of 2,048: 512
// sink, 512 window). Launches rotate over sets of summaries larger than L2.

#include <numeric>

#include "kernels/bench/replay.cuh"
#include "kernels/select/page_choice.h"

namespace kvtwin::test {
namespace {

using kernels::PagePooling;

constexpr uint32_t kDim = 128, kKvHeads = 8, kGroup = 4, kPage = 32, kChosen = 32;

// kUnturned: what is between a query and attention if no head's query turned: the comparison, and the scores
// and the choice of no head.
enum class Part : uint8_t { kScore, kChoose, kUnturned };

// range: requests, tokens per request.
void choice(benchmark::State& state, PagePooling pooling, Part part) {
  const auto requests = static_cast<uint32_t>(state.range(0)), tokens = static_cast<uint32_t>(state.range(1));
  const uint32_t pages = tokens / kPage - 32, each = requests * pages;
  const double bytes = 4.0 * kDim * kKvHeads * each;
  const auto sets = static_cast<uint32_t>(std::clamp<double>(std::ceil(384e6 / bytes), 1, 48));
  ChoiceShape shape{kDim, kKvHeads, kGroup, kChosen, pooling, 0.0883883f, 0.9};
  shape.score_stride = (pages + 3) / 4 * 4;
  std::vector<uint32_t> lists(size_t{each} * sets);
  std::iota(lists.begin(), lists.end(), 0);
  std::shuffle(lists.begin(), lists.end(), std::mt19937(1));
  std::vector<ChoiceRow> rows;
  for (uint32_t i = 0; i < requests * sets; ++i) {
    rows.push_back({i % requests, i % requests, pages, i * pages, 0, i % requests * kKvHeads * kChosen,
                    kChosen, Held::kTrusted, 0});
  }
  const auto summaries = random_bf16(lists.size() * kKvHeads * 2 * kDim);
  const auto q = random_bf16(size_t{requests} * kKvHeads * kGroup * kDim);
  const DeviceArray<__nv_bfloat16> before(size_t{requests} * kKvHeads * kGroup * kDim);
  KVT_CUDA(cudaMemcpy(before.get(), q.get(), q.bytes(), cudaMemcpyDeviceToDevice));
  std::vector<uint32_t> slots(size_t{requests} * kKvHeads * kChosen);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = i % kChosen;
  const DeviceArray<uint32_t> lists_on(lists), held(slots), tables(slots);
  const DeviceArray<ChoiceRow> rows_on(rows);
  const DeviceArray<float> u(size_t{requests} * kKvHeads * kGroup * shape.score_stride);
  const DeviceArray<RecallMove> moves(slots.size()), more(slots.size());
  const DeviceArray<ChoiceCounts> counts(1);
  const DeviceArray<uint8_t> now(size_t{requests} * kKvHeads);
  ChoiceArgs args{rows_on.get(), requests, lists_on.get(), summaries.get(), q.get(),    before.get(),
                  held.get(),    u.get(),  tables.get(),   moves.get(),     more.get(), counts.get()};
  KVT_CUDA(score_pages(shape, args, nullptr));
  KVT_CUDA(cudaDeviceSynchronize());
  if (part == Part::kUnturned) args.now = now.get();
  const double seconds = median_of_replays(state, std::max(sets, 8u), [&](uint32_t i, cudaStream_t stream) {
    args.rows = rows_on.get() + i % sets * requests;
    if (part == Part::kScore) return score_pages(shape, args, stream);
    cudaError_t error = cudaMemsetAsync(counts.get(), 0, sizeof(ChoiceCounts), stream);
    if (part == Part::kUnturned && error == cudaSuccess) error = compare_queries(shape, args, stream);
    if (part == Part::kUnturned && error == cudaSuccess) error = score_pages(shape, args, stream);
    return error != cudaSuccess ? error : choose_pages(shape, args, stream);
  });
  state.counters["us_median"] = seconds * 1e6;
  if (part != Part::kScore) return;
  state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = bytes / seconds / 1e9;
  state.counters["pct_ceiling"] = bytes / seconds / kReadCeiling * 100;
  label_with_digest(state, u);
}

void shapes(benchmark::internal::Benchmark* b) {
  for (const int requests : {1, 8, 32}) b->Args({requests, 32768});
  b->Args({32, 131072})->UseManualTime()->Iterations(11)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(choice, score_mean_s, PagePooling::kMeanS, Part::kScore)->Apply(shapes);
BENCHMARK_CAPTURE(choice, score_mean_q, PagePooling::kMeanQ, Part::kScore)->Apply(shapes);
BENCHMARK_CAPTURE(choice, choose_mean_s, PagePooling::kMeanS, Part::kChoose)->Apply(shapes);
BENCHMARK_CAPTURE(choice, choose_mean_qk, PagePooling::kMeanQk, Part::kChoose)->Apply(shapes);
BENCHMARK_CAPTURE(choice, unturned_mean_s, PagePooling::kMeanS, Part::kUnturned)->Apply(shapes);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
