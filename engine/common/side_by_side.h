// side_by_side does independent pieces of work on as many threads as there are processors. Pieces write to
// places of their own, so neither threads nor their number change a bit.

#ifndef KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_
#define KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_

#include <cstdint>
#include <functional>

namespace kvtwin::cpu {

// work(0) ... work(count - 1), each once, in any order. It has returned from all of them when this returns.
void side_by_side(uint32_t count, const std::function<void(uint32_t)>& work);

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_SIDE_BY_SIDE_H_
