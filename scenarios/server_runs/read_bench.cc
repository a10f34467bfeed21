// Results of vLLM's and SGLang's serving benchmarks, which have a common origin and common field names.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "scenarios/server_runs/measured.h"

namespace kvtwin {
namespace {

using ForeignJson = nlohmann::json;  // written by other tools

// One object, which may span many lines, or one object per line.
Result<std::vector<ForeignJson>> objects_of(std::string_view text, const std::string& where) {
  ForeignJson whole = ForeignJson::parse(text, nullptr, false);
  if (whole.is_object()) return std::vector<ForeignJson>{std::move(whole)};
  std::vector<ForeignJson> out;
  uint64_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    out.push_back(ForeignJson::parse(line, nullptr, false));
    if (!out.back().is_object())
      return make_error(fmt::format("{}:{}", where, number), "is not a JSON object",
                        "the result of one benchmark, or one result per line");
  }
  if (out.empty()) return make_error(where, "holds no result");
  return out;
}

class Reader {
 public:
  Reader(const ForeignJson& json, std::string where) : json_(json), where_(std::move(where)) {}

  Result<MeasuredRun> read() {
    for (const char* name : {"input_lens", "output_lens", "ttfts", "itls"}) {
      if (json_.contains(name) && json_[name].is_array()) continue;
      return make_error(where_, fmt::format("has no list \"{}\"", name),
                        "save single requests too: vllm bench serve --save-detailed, sglang.bench_serving "
                        "--output-details");
    }
    const size_t count = json_["input_lens"].size();
    for (const char* name : {"output_lens", "ttfts", "itls"}) {
      if (json_[name].size() != count)
        return make_error(where_,
                          fmt::format("{} has {} values, input_lens {}", name, json_[name].size(), count));
    }
    for (const char* name : {"input_lens", "output_lens"}) {
      for (size_t i = 0; i < count; ++i) {
        if (!json_[name][i].is_number_unsigned())
          return make_error(where_, fmt::format("{} of request {} is {}", name, i, json_[name][i].dump()),
                            "a number of tokens");
      }
    }
    try {
      run_.name = json_.value("model_id", json_.value("backend", std::string("benchmark")));
      begin_times(count);
      for (size_t i = 0; i < count; ++i) add(i);
      run_.result.mutable_rates()->set_elapsed_ns(static_cast<int64_t>(json_.value("duration", 0.0) * 1e9));
    } catch (const ForeignJson::exception& error) {
      return make_error(where_, fmt::format("cannot be read: {}", error.what()));
    }
    if (!timed_)
      run_.result.add_notes("the file has no start times: all requests are shown as starting at 0 s");
    if (const Result<void> good = check_requests(run_, where_); !good)
      return tl::unexpected<Error>(good.error());
    return std::move(run_);
  }

 private:
  void begin_times(size_t count) {
    begins_.assign(count, 0.0);
    timed_ = json_.contains("start_times") && json_["start_times"].size() == count;
    if (!timed_ || count == 0) return;
    begins_ = json_["start_times"].get<std::vector<double>>();
    const double first =
        *std::min_element(begins_.begin(), begins_.end());  // the clock's origin is arbitrary
    for (double& begin : begins_) begin -= first;
  }
  void add(size_t i) {
    MeasuredRequest request;
    request.prompt = json_["input_lens"][i].get<uint64_t>();
    request.output = json_["output_lens"][i].get<uint64_t>();
    const std::string error =
        json_.contains("errors") && i < json_["errors"].size() && json_["errors"][i].is_string()
            ? json_["errors"][i].get<std::string>()
            : "";
    request.finished = error.empty() && request.output > 0;
    request.begin_s = begins_[i];
    request.first_s = request.end_s = request.begin_s + json_["ttfts"][i].get<double>();
    for (const ForeignJson& gap : json_["itls"][i]) {
      request.end_s += gap.get<double>();
      if (request.finished) run_.itls_ns.push_back(gap.get<double>() * 1e9);
    }
    run_.requests.push_back(request);
  }

  const ForeignJson& json_;
  const std::string where_;
  MeasuredRun run_;
  std::vector<double> begins_;
  bool timed_ = false;
};

}  // namespace

Result<MeasuredRun> read_bench(std::string_view text, const std::string& where, int64_t run) {
  const Result<std::vector<ForeignJson>> all = objects_of(text, where);
  if (!all) return tl::unexpected<Error>(all.error());
  const auto count = static_cast<int64_t>(all->size());
  if (run >= count)
    return make_error("--run", fmt::format("there is no run {}", run),
                      fmt::format("{} has {}, from 0", where, count));
  const auto index = static_cast<size_t>(run < 0 ? count - 1 : run);
  return Reader((*all)[index], where).read();
}

}  // namespace kvtwin
