// What limits a run: one sentence for people and one word for programs.

#ifndef KVTWIN_SCENARIOS_OUTPUT_LIMITING_H_
#define KVTWIN_SCENARIOS_OUTPUT_LIMITING_H_

#include <string>

#include "traces/proto/run.pb.h"

namespace kvtwin {

struct Limiting {
  // kv_memory, request_limit, prefill, decode, transfers, host, window, nothing.
  const char* what = "nothing";
  std::string sentence;
};

// The part of the requests' time that is avoidable and largest decides: time in the queue is due to what the
// queue waits for (KV pages, the limit of running requests, the GPU), the rest to the GPU, copies or the
// host.
Limiting limiting(const v1::RunResult& result);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OUTPUT_LIMITING_H_
