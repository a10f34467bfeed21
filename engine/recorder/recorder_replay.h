// replay() runs the policy on a log, without the original backend, and reports whether its decisions are the
// recorded ones.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_REPLAY_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_REPLAY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/recorder/recorder_log.h"

namespace kvtwin {

struct Replayed {
  RunEnd end;
  bool same = false;       // digests are equal
  std::string difference;  // otherwise: the first difference, in one sentence
};

// `name` is for messages. Fails only if `log` cannot be run at all; differing decisions are a result.
// Observers see the replayed run like any other.
Result<Replayed> replay(const std::string& name, const Log& log, const std::vector<Observer*>& observers);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_REPLAY_H_
