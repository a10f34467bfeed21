#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "engine/calibrate/calibration.h"
#include "engine/calibrate/chunk_load.h"
#include "models/cost_tables/measured_cost.h"

namespace kvtwin::cuda {

// Decodes after chunks of 9 to 900 ms (the last chunk begins about 15 ms before their end): how the clock
// recovers from chunks.
void Calibration::after_chunks() {
  const std::vector<BenchRequest> requests(16, BenchRequest{1, 1024, true});
  constexpr double kLengthsMs[] = {9, 22, 70, 250, 900};
  std::map<uint32_t, std::map<uint32_t, std::vector<double>>> by_length;
  for (int repeat = 0; repeat < (request_.quick ? 1 : 3); ++repeat) {
    for (const double length : kLengthsMs) {
      const uint32_t tokens = std::min(length < 20 ? 320u : 1024u, rows_.back());
      const BenchRequest chunk{tokens, 0, true};
      wait_idle();
      plain_->series({&chunk, 1}, tokens, std::max(1.0, (length - 15) * 1e3));
      double since = 0;
      for (const double us : plain_->series(requests, 16, kCalmUs * 1.3)) {
        const uint32_t bin = since < 30e3 ? 5 : since < 60e3 ? 10 : 20;
        const auto ms = static_cast<uint32_t>(since / 1e3) / bin * bin + bin / 2;
        by_length[static_cast<uint32_t>(length)][std::min(ms, static_cast<uint32_t>(kCalmUs / 1e3))]
            .push_back(us);
        since += us;
      }
    }
  }
  for (const auto& [length, by_ms] : by_length) {
    for (const auto& [ms, us] : by_ms)
      tables_.keep("decode after load", shapes_.model, length, ms, measured_of(us));
  }
  say("decodes behind chunks are measured");
}

// Chunks after idle time, and after further chunks: their durations by the fraction of the preceding window
// that was spent on chunks.
void Calibration::after_load() {
  for (const uint32_t tokens : rows_) {
    if (tokens < kDecodeRowsMax) continue;
    for (const auto& [load, us] : chunk_runs_->by_load(tokens)) {
      const bool full = load == kSustainedLoad && tokens > kDecodeRowsMax;
      tables_.keep("chunk after load", shapes_.model, tokens, load, full ? chunk_runs_->taken(tokens) : us);
    }
  }
  small_after_load();
  figure("chunk load window", "ms", {kLoadWindowUs / 1e3});
  figure("chunk tables hold unloaded up to", "rows", {static_cast<double>(kDecodeRowsMax)});
}

// Chunks that are too short to be a load themselves wait for memory, as decodes do: the effect of long chunks
// before them.
void Calibration::small_after_load() {
  const BenchRequest load{std::min(1024u, rows_.back()), 0, true};
  for (const uint32_t tokens : {64u, 128u}) {
    const BenchRequest chunk{tokens, 0, true};
    std::vector<double> quietly, behind;
    for (int repeat = 0; repeat < 4; ++repeat) {
      wait_idle();
      quietly.push_back(plain_->series({&chunk, 1}, tokens, 1).front());
      plain_->series({&load, 1}, load.tokens, 2 * kLoadWindowUs);
      behind.push_back(plain_->series({&chunk, 1}, tokens, 1).front());
    }
    tables_.keep("chunk after load", shapes_.model, tokens, 0, measured_of(quietly));
    tables_.keep("chunk after load", shapes_.model, tokens, 1000, measured_of(behind));
  }
}

// Chunks without pauses for longer periods: their duration by the length of the period.
void Calibration::busy_period(double length) {
  const uint32_t tokens = std::min(1024u, rows_.back());
  const BenchRequest chunk{tokens, 0, true};
  wait_idle();
  wait_idle();
  double spent = 0;
  for (const double us : plain_->series({&chunk, 1}, tokens, length)) {
    const double bin = spent < kLateBusyUs ? kBusyBinUs : kLateBusyBinUs;
    if (spent >= kBusyBinUs)  // shorter periods belong to the window
      by_ms_[static_cast<uint32_t>((std::floor(spent / bin) + 0.5) * bin / 1e3)].push_back(us);
    spent += us;
  }
}

void Calibration::busy_curves() {
  for (const auto& [ms, values] : by_ms_)
    tables_.keep("chunk by busy time", shapes_.model, std::min(1024u, rows_.back()), ms, middle_of(values));
  figure("chunk tables hold from", "ms", {kLoadWindowUs / 1e3});
  figure("chunk tables hold to", "ms", {(kLoadWindowUs + kShortBusyUs) / 1e3});
}

// Determines the pause after which a chunk is as fast as after idle time: where half of the effect of load is
// gone.
void Calibration::pauses() {
  const uint32_t tokens = std::min(1024u, rows_.back());
  const BenchRequest chunk{tokens, 0, true};
  const std::vector<BenchRequest> requests(kRestRequests, BenchRequest{1, 512, true});
  wait_idle();
  const double cold = plain_->series({&chunk, 1}, tokens, 1).front();
  double forgotten = 0;
  for (const double pause_ms : {60.0, 45.0, 30.0, 20.0, 10.0, 5.0}) {
    const double hot = measured_of(plain_->series({&chunk, 1}, tokens, 300e3)).us;
    plain_->series(requests, kRestRequests, pause_ms * 1e3);
    const double first = plain_->series({&chunk, 1}, tokens, 1).front();
    figure(fmt::format("chunk behind a pause of {} ms", pause_ms), "us", {first});
    if (first < (cold + hot) / 2) forgotten = pause_ms;
  }
  figure("chunk load is forgotten in", "ms", {forgotten > 0 ? forgotten : 60.0});
}

// Measures the time that decodes and further chunks add to a step with a chunk, beyond their operations as a
// graph launches them (the tables). Steps have the same number of rows, run between decodes, and differ in
// the number of rows that decode. The price error of the chunk alone is excluded.
Result<void> Calibration::during_chunks() {
  auto cost = MeasuredCost::make(out_, request_.llm, {}, "what was just measured");
  if (!cost) return tl::unexpected<Error>(cost.error());
  const std::vector<BenchRequest> between(kRestRequests, BenchRequest{1, 512, true});
  const auto off = [&](const std::vector<BenchRequest>& requests, uint32_t rows) {
    BenchShape at(requests, rows, 0);
    at.shape.chunk_load = at.shape.busy_ms = 0;
    const double priced = static_cast<double>((*cost)->step(at.shape).device) / kTicksPerNs / 1e3;
    plain_->series(between, kRestRequests, kBetweenUs);
    return plain_->measure(requests, rows, 0, 1).wall.front() - priced;
  };
  std::map<uint32_t, std::vector<double>> decoding, several;
  for (const uint32_t rows : {64u, 128u, 256u}) {
    std::map<uint32_t, std::vector<double>> by_decodes, by_chunks;
    for (uint32_t repeat = 0; repeat < (request_.quick ? 2 : pace_.singles() + 1); ++repeat) {
      for (const uint32_t decodes : {0u, 1u, 8u, 32u, 64u, 128u, 192u}) {
        std::vector<BenchRequest> requests(decodes, BenchRequest{1, kShortContext, true});
        if (decodes >= rows) continue;
        requests.push_back({rows - decodes, 0, true});
        by_decodes[decodes].push_back(off(requests, rows));
      }
      for (const uint32_t chunks : {2u, 4u, 8u})
        by_chunks[chunks].push_back(off(std::vector<BenchRequest>(chunks, {rows / chunks, 0, true}), rows));
    }
    const double alone = measured_of(by_decodes[0]).us;
    for (const auto& [from, to] : {std::pair(&by_decodes, &decoding), std::pair(&by_chunks, &several)}) {
      for (const auto& [count, values] : *from) {
        for (const double value : values) (*to)[count].push_back(std::max(0.0, value - alone));
      }
    }
  }
  decoding.erase(0);
  for (const auto& [count, values] : decoding)
    tables_.keep("chunk host mixed", shapes_.model, count, 0, measured_of(values));
  tables_.keep("chunk host several", shapes_.model, 1, 0, {});
  for (const auto& [count, values] : several)
    tables_.keep("chunk host several", shapes_.model, count, 0, measured_of(values));
  out_.tables = tables_.tables();
  return {};
}

}  // namespace kvtwin::cuda
