// Sizes of the tiers below the GPU, in pages.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/plural.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "traces/replay/replay.h"

namespace kvtwin {

// Pages in memory.host_bytes; `pages` is the GPU's number of pages.
uint32_t pages_on_host(const Scenario& scenario, uint64_t page_bytes, uint32_t pages, const Composed& out,
                       Errors* errors) {
  const v1::Scenario& values = scenario.values;
  const uint64_t pages_host = values.memory().host_bytes() / std::max<uint64_t>(page_bytes, 1);
  if (pages_host + pages > UINT32_MAX) {
    errors->push_back({scenario.where("memory.host_bytes"), fmt::format("{} pages are too many", pages_host),
                       "use larger pages, or less memory"});
  }
  const uint32_t together = std::min(values.engines().count(), out.gpus / values.engines().tensor_parallel());
  const double host_all = static_cast<double>(values.memory().host_bytes()) * together;
  if (out.node.host_memory_bytes.present() && host_all > out.node.host_memory_bytes.value) {
    errors->push_back(
        {scenario.where("memory.host_bytes"),
         fmt::format("{} {} with {:.0f} GB each: {:.0f} GB of host memory, {} has {:.0f} GB", together,
                     plural(together, "engine"), static_cast<double>(values.memory().host_bytes()) / 1e9,
                     host_all / 1e9, out.node.name, out.node.host_memory_bytes.value / 1e9),
         fmt::format("largest that fits: --set=memory.host_bytes={:.0f}; or a larger host: "
                     "--set=hardware.host_memory_bytes={:.0f}",
                     std::floor(out.node.host_memory_bytes.value / together), host_all)});
  }
  return static_cast<uint32_t>(pages_host);
}

// Pages in memory.disk_bytes.
uint32_t pages_on_disk(const Scenario& scenario, uint64_t page_bytes, const Composed& out, Errors* errors) {
  const v1::Scenario& values = scenario.values;
  const uint64_t bytes = values.memory().disk_bytes();
  const std::string where = scenario.where("memory.disk_bytes");
  const auto problem = [&](const std::string& what, const std::string& hint) {
    errors->push_back({where, what, hint});
    return 0u;
  };
  if (bytes == 0) return 0;
  if (values.memory().host_bytes() == 0) {
    return problem("a disk tier needs a host tier, and there is none",
                   "--set=memory.host_bytes=N; or --set=memory.disk_bytes=0");
  }
  if (values.backend() == "cuda") {
    return problem("the CUDA engine has no disk tier",
                   "use --backend=sim or --backend=cpu, or --set=memory.disk_bytes=0");
  }
  if (!out.node.disk_bytes.present()) {
    return problem(fmt::format("node {} has no disk for KV", out.node.name),
                   "write disk_bytes and its rates into the node's file, choose a node that has them "
                   "(models/node/h200.textproto), or --set=memory.disk_bytes=0");
  }
  const uint32_t together = std::min(values.engines().count(), out.gpus / values.engines().tensor_parallel());
  if (values.engines().count() > together || values.engines().further_size() > 0) {
    return problem(
        fmt::format("{} engines are on several nodes, and a disk belongs to one", values.engines().count()),
        fmt::format("largest number of engines on one {}: {}; or --set=memory.disk_bytes=0", out.node.name,
                    together));
  }
  const double all = static_cast<double>(bytes) * together;
  if (all > out.node.disk_bytes.value) {
    return problem(fmt::format("{} {} with {:.0f} GB each: {:.0f} GB of disk, {} has {:.0f} GB", together,
                               plural(together, "engine"), static_cast<double>(bytes) / 1e9, all / 1e9,
                               out.node.name, out.node.disk_bytes.value / 1e9),
                   fmt::format("largest that fits: --set=memory.disk_bytes={:.0f}",
                               std::floor(out.node.disk_bytes.value / together)));
  }
  const uint64_t pages = bytes / std::max<uint64_t>(page_bytes, 1);
  if (pages == 0) {
    return problem(fmt::format("{} bytes are less than a page of {} bytes", bytes, page_bytes),
                   fmt::format("smallest that fits: --set=memory.disk_bytes={}", page_bytes));
  }
  if (pages > UINT32_MAX / 2) {
    return problem(fmt::format("{} pages are too many", pages), "use larger pages, or less of the disk");
  }
  return static_cast<uint32_t>(pages);
}

void note_beyond_window(Composed* out) {
  if (out->window_of_model == 0 || out->llm.context_window <= out->window_of_model) return;
  uint64_t beyond = 0, longest = 0;
  for (const TableNode& node : out->client->table().nodes) {
    const uint64_t tokens = uint64_t{node.prompt_tokens} + node.output_tokens;
    beyond += tokens > out->window_of_model;
    longest = std::max(longest, tokens);
  }
  if (beyond == 0) return;
  out->notes.push_back(fmt::format(
      "{} {} longer than the model's window of {} tokens, the longest has {}: model.context_window "
      "is {}, answers beyond the model's own are not what it was trained for",
      beyond, beyond == 1 ? "request is" : "requests are", out->window_of_model, longest,
      out->llm.context_window));
}

}  // namespace kvtwin
