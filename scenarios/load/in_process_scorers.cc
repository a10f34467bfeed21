#include "scenarios/load/in_process_scorers.h"

#include <map>
#include <mutex>
#include <utility>

namespace kvtwin {
namespace {

constexpr std::string_view kInProcess = "in-process ";

struct Scorers {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<kernels::ExternalScorer>, std::less<>> by_name;
};

Scorers& scorers() {
  static Scorers all;
  return all;
}

}  // namespace

std::string in_process_command(std::string_view name) { return std::string(kInProcess) + std::string(name); }
bool is_in_process(std::string_view command) { return command.starts_with(kInProcess); }

std::shared_ptr<kernels::ExternalScorer> in_process_scorer(std::string_view command) {
  if (!is_in_process(command)) return nullptr;
  Scorers& all = scorers();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(command.substr(kInProcess.size()));
  return found == all.by_name.end() ? nullptr : found->second;
}

InProcessScorer::InProcessScorer(std::string name, std::shared_ptr<kernels::ExternalScorer> scorer)
    : name_(std::move(name)), hidden_(std::move(scorer)) {
  Scorers& all = scorers();
  const std::lock_guard lock(all.mutex);
  std::swap(all.by_name[name_], hidden_);
}

InProcessScorer::~InProcessScorer() {
  Scorers& all = scorers();
  const std::lock_guard lock(all.mutex);
  std::swap(all.by_name[name_], hidden_);
  if (all.by_name[name_] == nullptr) all.by_name.erase(name_);
}

}  // namespace kvtwin
