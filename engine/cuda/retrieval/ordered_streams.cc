#include "engine/cuda/retrieval/ordered_streams.h"

#include <algorithm>
#include <iterator>

#include "engine/base/prng.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/common/delay.h"

namespace kvtwin::cuda {
namespace {

constexpr uint64_t kDelayMax = 200'000;  // ns
constexpr StreamKind kOwn[] = {StreamKind::kRecall, StreamKind::kOffload, StreamKind::kSelect};

}  // namespace

Result<std::unique_ptr<OrderedStreams>> OrderedStreams::make(uint32_t layers, const OrderTests& tests) {
  std::unique_ptr<OrderedStreams> out(new OrderedStreams(layers, tests));
  int low = 0, high = 0;
  if (Result<void> ok = check(cudaDeviceGetStreamPriorityRange(&low, &high), "stream priorities", ""); !ok)
    return tl::unexpected<Error>(ok.error());
  for (const StreamKind stream_kind : kOwn) {
    // Choices for the next step take what attention leaves free; copies keep PCIe busy.
    const int priority = stream_kind == StreamKind::kSelect ? low : high;
    if (Result<void> ok =
            check(cudaStreamCreateWithPriority(&out->streams_[static_cast<uint32_t>(stream_kind)],
                                               cudaStreamNonBlocking, priority),
                  "cudaStreamCreate", "");
        !ok)
      return tl::unexpected<Error>(ok.error());
  }
  out->events_.resize(size_t{kEdges} * layers);
  for (cudaEvent_t& event : out->events_) {
    if (Result<void> ok =
            check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate", "");
        !ok)
      return tl::unexpected<Error>(ok.error());
    // A wait on a recorded event that has completed returns at once, in graphs too.
    if (Result<void> ok =
            check(cudaEventRecord(event, out->stream(StreamKind::kRecall)), "cudaEventRecord", "");
        !ok)
      return tl::unexpected<Error>(ok.error());
  }
  return out;
}

OrderedStreams::~OrderedStreams() {
  for (const StreamKind stream_kind : kOwn) {
    if (stream(stream_kind) == nullptr) continue;
    cudaStreamSynchronize(stream(stream_kind));  // memory in use by running work must not be freed
    cudaStreamDestroy(stream(stream_kind));
  }
  for (const cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

void OrderedStreams::begin(const ListedOperation& one) {
  if (one.after) wait(one.stream, one.after);
  const bool reads = std::find(std::begin(kAttentionKernels), std::end(kAttentionKernels), one.kind) !=
                     std::end(kAttentionKernels);
  if (one.after || reads) delay_for_tests(one.stream);
  timer_->begin(one);
}

void OrderedStreams::end(const ListedOperation& one) {
  if (one.records) record(one.stream, one.records);
}

void OrderedStreams::record(StreamKind stream_kind, const StepEvent& event) {
  must(cudaEventRecordWithFlags(events_[number(event)], stream(stream_kind),
                                captured() ? cudaEventRecordExternal : cudaEventRecordDefault),
       "cudaEventRecord");
  timer_->records(stream_kind, event);
  if (watched()) watch()->recorded(number(event), static_cast<uint32_t>(stream_kind));
}

// The wait happens even for an edge that a test leaves out: a kernel would otherwise read incomplete lists
// with invalid page numbers. Only the watch does not see it.
void OrderedStreams::wait(StreamKind stream_kind, const StepEvent& event) {
  must(cudaStreamWaitEvent(stream(stream_kind), events_[number(event)],
                           captured() ? cudaEventWaitExternal : cudaEventWaitDefault),
       "cudaStreamWaitEvent");
  timer_->waits(stream_kind, event);
  if (watched() && event.edge != tests_.left_out)
    watch()->waited(static_cast<uint32_t>(stream_kind), number(event));
}

void OrderedStreams::hold(cudaStream_t other, const StepEvent& event) {
  must(cudaStreamWaitEvent(other, events_[number(event)]), "cudaStreamWaitEvent");
}

void OrderedStreams::wait_for(StreamKind stream_kind) {
  must(cudaStreamSynchronize(stream(stream_kind)), "wait for a stream", 0,
       [&] { return std::string(name_of(stream_kind)); });
  waited_for(stream_kind);
}

void OrderedStreams::step_ended() { waited_for(StreamKind::kCompute); }

// Later work is started by the host, so it is ordered after the stream on every other one.
void OrderedStreams::waited_for(StreamKind stream_kind) {
  if (tests_.watch == nullptr) return;
  constexpr uint32_t kHost = UINT32_MAX;
  tests_.watch->recorded(kHost, static_cast<uint32_t>(stream_kind));
  for (uint32_t other = 0; other < kStreamKinds; ++other) tests_.watch->waited(other, kHost);
}

void OrderedStreams::delay_for_tests(StreamKind stream_kind) {
  if (tests_.delays == 0) return;
  const uint64_t bits = draw({tests_.delays, ++moments_});
  if (bits % 3 == 0) return;
  must(delay(bits / 3 % kDelayMax, stream(stream_kind)), "delay");
}

void OrderedStreams::touches(StreamKind stream_kind, HappensBefore::Access access, const char* what,
                             uint32_t number, const char* operation) {
  if (!watched()) return;
  watch()->touches(static_cast<uint32_t>(stream_kind), access, {what, number}, operation);
}

}  // namespace kvtwin::cuda
