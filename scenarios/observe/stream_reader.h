// StreamReader reads the server-sent events of one streamed completion.

#ifndef KVTWIN_SCENARIOS_OBSERVE_STREAM_READER_H_
#define KVTWIN_SCENARIOS_OBSERVE_STREAM_READER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "scenarios/observe/http_requests.h"

namespace kvtwin {

class StreamReader {
 public:
  // Bytes that arrived at `now_ns`.
  void add(std::string_view bytes, int64_t now_ns, HttpReply* reply);
  // After the last byte. `status` is HTTP's.
  void end(long status, HttpReply* reply);

 private:
  void line(std::string_view text, int64_t now_ns, HttpReply* reply);

  std::string rest_;   // of an incomplete line
  std::string start_;  // of the body, for messages
  bool done_ = false;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_OBSERVE_STREAM_READER_H_
