#include <fmt/format.h>

#include <string>
#include <tuple>
#include <vector>

#include "engine/calibrate/calibration.h"

namespace kvtwin::cuda {

void Calibration::copies() {
  const std::string page = std::to_string(request_.llm.kv_bytes_per_token() * request_.page_tokens);
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u, 256u, 1024u}) {
      if (request_.quick && pages > 64) continue;
      tables_.keep(in ? "copy in" : "copy out", page, pages, 0,
                   measured_of(plain_->copies(in, pages, pages > 100 ? 5 : 10)));
    }
  }
}

// Copies concurrent with longer decode steps, as in a server.
void Calibration::copies_during_steps() {
  const std::string page = std::to_string(request_.llm.kv_bytes_per_token() * request_.page_tokens);
  const std::vector<BenchRequest> requests(8, BenchRequest{1, 1024, true});
  for (const bool in : {true, false}) {
    for (const uint32_t pages : {1u, 4u, 16u, 64u}) {
      const StepBench::Concurrent found =
          plain_->copy_during_steps(requests, in, pages, request_.quick ? 4 : 12);
      tables_.keep(in ? "copy in during steps" : "copy out during steps", page, pages, 0,
                   measured_of(found.copies));
      if (pages == 64)
        figure(fmt::format("decode of 8 x 1024 beside a copy {}", in ? "in" : "out"), "us", found.steps.wall);
    }
  }
}

void Calibration::both_ways() {
  const StepBench::BothWays both = plain_->both_ways(64, 12);
  figure("in beside out", "GB/s", both.in_gb_per_s);
  figure("out beside in", "GB/s", both.out_gb_per_s);
}

void Calibration::during_copies() {
  const std::vector<BenchRequest> requests(32, BenchRequest{1, 2048, true});
  for (const auto& [in, out, name] :
       {std::tuple(false, false, "no copies"), std::tuple(true, false, "copies in"),
        std::tuple(false, true, "copies out"), std::tuple(true, true, "both")}) {
    const StepBench::Concurrent found = plain_->during_copies(requests, in, out, 240, request_.quick ? 4 : 6);
    figure(fmt::format("decode of 32 x 2048 beside {}", name), "us", found.steps.wall);
    figure(fmt::format("in beside decode, {}", name), "GB/s", found.in_gb_per_s);
    figure(fmt::format("out beside decode, {}", name), "GB/s", found.out_gb_per_s);
  }
}

}  // namespace kvtwin::cuda
