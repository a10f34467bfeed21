// Scorers that the process which embeds kvtwin provides, such as functions of Python. A scenario names one in
// policies.scorer_options.command as "in-process NAME", so that results say where their scores came from.

#ifndef KVTWIN_SCENARIOS_LOAD_IN_PROCESS_SCORERS_H_
#define KVTWIN_SCENARIOS_LOAD_IN_PROCESS_SCORERS_H_

#include <memory>
#include <string>
#include <string_view>

#include "kernels/scoring/score_external.h"

namespace kvtwin {

std::string in_process_command(std::string_view name);
bool is_in_process(std::string_view command);
// Null: no scorer of this name is there.
std::shared_ptr<kernels::ExternalScorer> in_process_scorer(std::string_view command);

// The scorer can be found by its name for as long as this lives; it hides an earlier one of the same name.
class InProcessScorer {
 public:
  InProcessScorer(std::string name, std::shared_ptr<kernels::ExternalScorer> scorer);
  InProcessScorer(const InProcessScorer&) = delete;
  InProcessScorer& operator=(const InProcessScorer&) = delete;
  ~InProcessScorer();

 private:
  const std::string name_;
  std::shared_ptr<kernels::ExternalScorer> hidden_;  // null: there was none
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_IN_PROCESS_SCORERS_H_
