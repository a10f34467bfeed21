// HappensBefore watches the order of work on several streams (docs/design/methods/composition.md#invariants,
// which stream has waited for which, and whether everything that touches the same memory is ordered. It
// is notified of what is started, when it is started, and never asks the GPU: what it finds missing may go
// well a thousand times.
//
// A vector clock a stream: an operation is a tick of its stream's, an event is what a stream knew when it was
// recorded, waiting for an event is knowing all that. Memory is ordered if each read knows the last write,
// and each write the last write and all reads since.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_HAPPENS_BEFORE_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_HAPPENS_BEFORE_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvtwin::cuda {

class HappensBefore {
 public:
  static constexpr uint32_t kStreams = 4;  // at most
  enum class Access : uint8_t { kRead, kWrite };
  // Memory by kind and number, as the caller counts it.
  struct Memory {
    const char* what = "";
    uint32_t number = 0;
  };

  void recorded(uint32_t event, uint32_t stream);
  // Waiting for an event that was never recorded is waiting for nothing, as it is in CUDA.
  void waited(uint32_t stream, uint32_t event);
  // An operation of `stream` touches it.
  void touches(uint32_t stream, Access access, const Memory& memory, const char* operation);

  uint64_t operations() const { return operations_; }
  const std::vector<std::string>& findings() const { return findings_; }

 private:
  using Clock = std::array<uint64_t, kStreams>;
  struct Touch {
    uint64_t at = 0;  // on its stream; 0: never
    const char* operation = "";
  };
  struct History {
    uint32_t write_stream = 0;
    Touch write;
    std::array<Touch, kStreams> reads;  // since then, the last of each stream
  };
  void check(uint32_t stream, uint32_t other, const Touch& before, const Memory& memory,
             const char* operation);

  std::array<Clock, kStreams> known_{};
  std::map<uint32_t, Clock> events_;
  std::map<std::pair<std::string, uint32_t>, History> memory_;
  std::vector<std::string> findings_;
  uint64_t operations_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_HAPPENS_BEFORE_H_
