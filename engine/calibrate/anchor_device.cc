#include "engine/calibrate/anchor_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/calibrate/calibration_memory.h"
#include "engine/calibrate/chunk_load.h"
#include "engine/cuda/device/device_facts.h"
#include "models/cost_tables/measured_cost.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {
namespace {

class Anchors {
 public:
  Anchors(StepBench* bench, CostModel* cost, const LlmSpec& llm) : bench_(*bench), cost_(*cost), pace_(llm) {}

  void decodes(uint32_t count, uint32_t context) {
    const std::vector<BenchRequest> requests(count, BenchRequest{1, context, true});
    if (!bench_.fits(requests)) return;
    const StepRounds rounds = pace_.decodes();
    const Measured found = measured_of(bench_.measure(requests, count, rounds.warm, rounds.steps).wall);
    add(fmt::format("{} decodes of {}", count, context), AnchorKind::kDecode,
        BenchShape(requests, count, rounds.middle()), found.us);
  }

  // Measures twice, because one series may coincide with an unusual state of the clock.
  void chunk(uint32_t tokens, uint32_t context) {
    const BenchRequest bench_request{tokens, context, true};
    if (!bench_.fits({&bench_request, 1})) return;
    const StepRounds rounds = pace_.chunks(tokens);
    std::vector<double> all;
    for (int i = 0; i < 2; ++i) {
      rest(&bench_);
      const StepTimes found = bench_.measure({&bench_request, 1}, tokens, rounds.warm, rounds.steps);
      all.insert(all.end(), found.wall.begin(), found.wall.end());
    }
    add(fmt::format("a chunk of {} behind {}", tokens, context), AnchorKind::kChunk,
        BenchShape({&bench_request, 1}, tokens, 0), measured_of(all).us);
  }

  // The largest copy of the table, up to 256 pages.
  void copy(bool in, const MeasuredTable* table) {
    if (table == nullptr) return;
    const std::vector<uint32_t>& rows = table->rows;
    const auto beyond = std::upper_bound(rows.begin(), rows.end(), std::min(256u, bench_.copies_max()));
    if (beyond == rows.begin()) return;
    const uint32_t pages = *(beyond - 1);
    out_.push_back({fmt::format("{} pages {}", pages, in ? "in" : "out"), AnchorKind::kCopy,
                    table->at[static_cast<size_t>(beyond - rows.begin()) - 1].us,
                    measured_of(bench_.copies(in, pages, 5)).us});
  }

  std::vector<Anchor> take() { return std::move(out_); }

 private:
  void add(const std::string& what, AnchorKind kind, const BenchShape& at, double measured) {
    out_.push_back(
        {what, kind, static_cast<double>(cost_.step(at.shape).device) / kTicksPerNs / 1e3, measured});
  }

  StepBench& bench_;
  CostModel& cost_;
  const StepPace pace_;
  std::vector<Anchor> out_;
};

}  // namespace

Result<std::vector<Anchor>> measure_anchors(const CalibrationRequest& request,
                                            const MeasuredDevice& profile) {
  if (Result<void> ok = check_gpu(); !ok) return tl::unexpected<Error>(ok.error());
  auto cost = MeasuredCost::make(profile, request.llm, {}, "the profile");
  if (!cost) return tl::unexpected<Error>(cost.error());
  Result<std::unique_ptr<DeviceModel>> model =
      DeviceModel::make(ModelWeights::random_outline(request.llm, request.seed));
  if (!model) return tl::unexpected<Error>(model.error());
  StepBenchConfig config;
  config.page_tokens = profile.page_tokens;
  const Result<uint32_t> pages = first_engine_pages(request.llm, profile.page_tokens);
  if (!pages) return tl::unexpected<Error>(pages.error());
  config.pages_gpu = *pages, config.pages_host = pages_of_copies(request.llm, profile.page_tokens);
  config.row_sizes = calibrated_rows(false);
  config.rows_max = config.row_sizes.back(), config.samples_max = kDecodeRowsMax;
  Result<std::unique_ptr<StepBench>> bench = StepBench::make(config, request.llm, model->get());
  if (!bench) return tl::unexpected<Error>(bench.error());
  Anchors anchors(bench->get(), cost->get(), request.llm);
  rest(bench->get());
  for (const uint32_t count : {1u, 4u, 16u, 64u, 256u}) anchors.decodes(count, kShortContext);
  for (const auto& [count, context] :
       {std::pair(1u, 16384u), std::pair(8u, 8192u), std::pair(32u, 4096u), std::pair(128u, 1024u)})
    anchors.decodes(count, context);
  for (const auto& [tokens, context] :
       {std::pair(256u, 0u), std::pair(512u, 0u), std::pair(1024u, 0u), std::pair(1024u, 4096u),
        std::pair(2048u, 0u), std::pair(2048u, 4096u)})
    anchors.chunk(tokens, context);
  const std::string page = std::to_string(request.llm.kv_bytes_per_token() * profile.page_tokens);
  for (const bool in : {true, false}) anchors.copy(in, profile.table(in ? "copy in" : "copy out", page));
  return anchors.take();
}

}  // namespace kvtwin::cuda
