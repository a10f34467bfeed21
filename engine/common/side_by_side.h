// side_by_side() runs independent work items on as many threads as there are processors. Each item writes to
// its own memory, so threads and their number do not change the result.

#ifndef KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_
#define KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_

#include <cstdint>
#include <functional>

namespace kvtwin::cpu {

// Calls work(0) ... work(count - 1), each once, in any order. Returns when all have returned.
void side_by_side(uint32_t count, const std::function<void(uint32_t)>& work);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_
