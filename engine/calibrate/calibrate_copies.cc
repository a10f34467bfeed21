#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "engine/calibrate/calibration.h"
#include "engine/calibrate/calibration_memory.h"

namespace kvtwin::cuda {

std::string Calibration::page_shape(uint32_t page_tokens) const {
  return std::to_string(request_.llm.kv_bytes_per_token() * page_tokens);
}

void Calibration::copies(StepBench* bench, uint32_t page_tokens) {
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u, 256u, 1024u}) {
      if (pages > std::min(bench->copies_max(), request_.quick ? 64u : kPagesHostMost)) continue;
      tables_.keep(in ? "copy in" : "copy out", page_shape(page_tokens), pages, 0,
                   measured_of(bench->copies(in, pages, pages > 100 ? 5 : 10)));
    }
  }
}

// A page is one run of bytes a layer, so larger pages are copied faster: prices of other sizes lie between
// these.
Result<void> Calibration::copies_of_larger_pages() {
  constexpr uint32_t kDecodes = 8;
  for (const uint32_t factor : {2u, 4u}) {
    const uint32_t page_tokens = request_.page_tokens * factor;
    StepBenchConfig config;
    config.page_tokens = page_tokens;
    const Result<uint32_t> pages =
        next_engine_pages(request_.llm, page_tokens, request_.llm.kv_bytes_per_token(), kTokensSmall);
    if (!pages) return tl::unexpected<Error>(pages.error());
    config.pages_gpu = *pages, config.pages_host = pages_of_copies(request_.llm, page_tokens);
    config.rows_max = std::max(kDecodes, page_tokens), config.samples_max = kDecodes;
    config.row_sizes = {kDecodes, config.rows_max};
    const Result<std::unique_ptr<StepBench>> bench = StepBench::make(config, request_.llm, model_.get());
    if (!bench) return tl::unexpected<Error>(bench.error());
    copies(bench->get(), page_tokens);
    copies_during_steps(bench->get(), page_tokens);
  }
  say("copies of larger pages are measured");
  return {};
}

// Copies beside decode steps that are longer than they: how a server's are.
void Calibration::copies_during_steps(StepBench* bench, uint32_t page_tokens) {
  const std::vector<BenchRequest> requests(8, BenchRequest{1, 1024, true});
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u}) {
      if (pages > bench->copies_max()) continue;
      const StepBench::Concurrent found =
          bench->copy_during_steps(requests, in, pages, request_.quick ? 4 : 12);
      tables_.keep(in ? "copy in during steps" : "copy out during steps", page_shape(page_tokens), pages, 0,
                   measured_of(found.copies));
      if (pages == 64 && bench == plain_.get())
        figure(fmt::format("decode of 8 x 1024 beside a copy {}", in ? "in" : "out"), "us", found.steps.wall);
    }
  }
}

void Calibration::both_ways() {
  const StepBench::BothWays both = plain_->both_ways(std::min(64u, plain_->copies_max()), 12);
  figure("in beside out", "GB/s", both.in_gb_per_s);
  figure("out beside in", "GB/s", both.out_gb_per_s);
}

void Calibration::during_copies() {
  const std::vector<BenchRequest> requests(32, BenchRequest{1, 2048, true});
  const uint32_t pages = std::min(240u, plain_->copies_max());
  for (const auto& [in, out, name] :
       {std::tuple(false, false, "no copies"), std::tuple(true, false, "copies in"),
        std::tuple(false, true, "copies out"), std::tuple(true, true, "both")}) {
    const StepBench::Concurrent found =
        plain_->during_copies(requests, in, out, pages, request_.quick ? 4 : 6);
    figure(fmt::format("decode of 32 x 2048 beside {}", name), "us", found.steps.wall);
    figure(fmt::format("in beside decode, {}", name), "GB/s", found.in_gb_per_s);
    figure(fmt::format("out beside decode, {}", name), "GB/s", found.out_gb_per_s);
  }
}

}  // namespace kvtwin::cuda
