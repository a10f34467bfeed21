// timeline.perfetto-trace: Perfetto's TracePackets, written field by field.
//
// Field numbers are those of protos/perfetto/trace/ in github.com/google/perfetto (trace.proto,
// trace_packet.proto, track_event/*.proto), which Perfetto treats as stable public API.
// tests/unit/scenarios/perfetto_test.cc reads the file with a schema of its own.

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "scenarios/output/timeline.h"

namespace kvtwin {
namespace {

using Kind = TimelineMark::Kind;

// Trace
constexpr uint32_t kPacket = 1;
// TracePacket
constexpr uint32_t kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kSequenceFlags = 13,
                   kTrackDescriptor = 60;
constexpr uint64_t kStateCleared = 1;
// TrackDescriptor
constexpr uint32_t kUuid = 1, kTrackName = 2, kProcess = 3, kParent = 5, kCounter = 8;
// ProcessDescriptor, CounterDescriptor
constexpr uint32_t kPid = 1, kProcessName = 6, kUnit = 3;
constexpr uint64_t kUnitCount = 2;
// TrackEvent
constexpr uint32_t kAnnotations = 4, kType = 9, kTrack = 11, kCategories = 22, kName = 23, kCounterValue = 30;
enum : uint64_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCount = 4 };
// DebugAnnotation
constexpr uint32_t kUint = 3, kString = 6, kAnnotationName = 10;

// A protobuf message under construction.
class PackedMessage {
 public:
  PackedMessage& number(uint32_t field, uint64_t value) {
    varint(uint64_t{field} << 3);
    return varint(value);
  }
  PackedMessage& text(uint32_t field, std::string_view value) {
    varint(uint64_t{field} << 3 | 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  PackedMessage& message(uint32_t field, const PackedMessage& inner) { return text(field, inner.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  PackedMessage& varint(uint64_t value) {
    uint8_t buffer[10];
    const uint8_t* const end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(value, buffer);
    bytes_.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(end - buffer));
    return *this;
  }
  std::string bytes_;
};

// Track ids of one engine lie within 2^20 of the engine's own: each row's additional tracks follow its first.
constexpr uint64_t process_uuid(uint64_t engine) { return (engine + 1) << 20; }
constexpr uint64_t row_uuid(uint64_t engine, TimelineRow row, uint64_t lane) {
  return process_uuid(engine) + (static_cast<uint64_t>(row) << 16) + lane;
}
constexpr uint64_t kLanesMax = 1 << 16;

struct Packet {
  int64_t at;
  PackedMessage event;
};

class Writer {
 public:
  explicit Writer(size_t engines) {
    for (size_t i = 0; i < engines; ++i) {
      PackedMessage process;
      process.number(kPid, i + 1).text(kProcessName, fmt::format("engine {}", i));
      describe(PackedMessage().number(kUuid, process_uuid(i)).message(kProcess, process));
    }
  }

  // Spans and requests. Overlapping slices go to different tracks of a row; a track is reused after its slice
  // ends.
  void slices(const std::vector<TimelineMark>& marks) {
    std::vector<Slice> slices = slices_of(marks);
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      return std::tie(a.engine, a.row, a.from) < std::tie(b.engine, b.row, b.from);
    });
    std::map<std::pair<uint16_t, TimelineRow>, std::vector<int64_t>> lanes;  // when each track is free
    for (const Slice& slice : slices) {
      std::vector<int64_t>& free_at = lanes[{slice.engine, slice.row}];
      auto lane = std::find_if(free_at.begin(), free_at.end(), [&](int64_t at) { return at <= slice.from; });
      if (lane == free_at.end()) {
        if (free_at.size() == kLanesMax) continue;
        lane = free_at.insert(free_at.end(), 0);
        const auto number = static_cast<uint64_t>(free_at.size() - 1);
        std::string name = name_of(slice.row);
        if (number > 0) fmt::format_to(std::back_inserter(name), " {}", number + 1);
        describe(PackedMessage()
                     .number(kUuid, row_uuid(slice.engine, slice.row, number))
                     .text(kTrackName, name)
                     .number(kParent, process_uuid(slice.engine)));
      }
      *lane = slice.to;
      write(slice, row_uuid(slice.engine, slice.row, static_cast<uint64_t>(lane - free_at.begin())));
    }
  }

  void counts(const std::vector<TimelineMark>& marks) {
    std::map<std::tuple<uint16_t, std::string_view, std::string_view>, uint64_t> tracks;
    for (const TimelineMark& mark : marks) {
      if (mark.kind != Kind::kCounts) continue;
      for (const TimelineMark::Number& number : mark.numbers) {
        if (number.name == nullptr) break;
        const uint64_t next = process_uuid(mark.engine) + 1 + tracks.size() % (kLanesMax - 1);
        const auto [track, fresh] = tracks.try_emplace({mark.engine, mark.name, number.name}, next);
        if (fresh) {
          describe(PackedMessage()
                       .number(kUuid, next)
                       .text(kTrackName, fmt::format("{} {}", mark.name, number.name))
                       .number(kParent, process_uuid(mark.engine))
                       .message(kCounter, PackedMessage().number(kUnit, kUnitCount)));
        }
        add(mark.from, PackedMessage()
                           .number(kType, kCount)
                           .number(kTrack, track->second)
                           .number(kCounterValue, number.value));
      }
    }
  }

  std::string finish() {
    std::stable_sort(events_.begin(), events_.end(),
                     [](const Packet& a, const Packet& b) { return a.at < b.at; });
    std::string out;
    bool first = true;
    const auto put = [&](PackedMessage packet) {
      packet.number(kSequence, 1);
      if (first) packet.number(kSequenceFlags, kStateCleared);
      first = false;
      out += PackedMessage().message(kPacket, packet).bytes();
    };
    for (const PackedMessage& track : tracks_) put(PackedMessage().message(kTrackDescriptor, track));
    for (const Packet& event : events_) {
      put(PackedMessage()
              .number(kTimestamp, static_cast<uint64_t>(event.at))
              .message(kTrackEvent, event.event));
    }
    return out;
  }

 private:
  struct Slice {
    uint16_t engine;
    TimelineRow row;
    int64_t from, to;
    const TimelineMark* mark;
    std::vector<const TimelineMark*> instants;
    bool open;  // it continues after the window
  };

  static std::vector<Slice> slices_of(const std::vector<TimelineMark>& marks) {
    std::vector<Slice> out;
    std::map<std::pair<uint16_t, RequestId>, size_t> requests;  // those that have begun
    for (const TimelineMark& mark : marks) {
      const std::pair request{mark.engine, mark.request};
      if (mark.kind == Kind::kSpan) {
        out.push_back({mark.engine, mark.row, mark.from.ns, mark.to.ns, &mark, {}, false});
      } else if (mark.kind == Kind::kBegin) {
        requests[request] = out.size();
        out.push_back({mark.engine, mark.row, mark.from.ns, INT64_MAX, &mark, {}, true});
      } else if (const auto begun = requests.find(request); begun != requests.end()) {
        Slice& slice = out[begun->second];
        if (mark.kind == Kind::kInstantEvent) slice.instants.push_back(&mark);
        if (mark.kind != Kind::kEnd) continue;
        slice.to = mark.from.ns;
        slice.open = false;
        requests.erase(begun);
      }
    }
    return out;
  }

  void write(const Slice& slice, uint64_t track) {
    const TimelineMark& mark = *slice.mark;
    PackedMessage begin;
    begin.number(kType, kSliceBegin).number(kTrack, track).text(kCategories, "kvtwin");
    begin.text(kName, mark.kind == Kind::kBegin ? fmt::format("request {}", raw(mark.request)) : mark.name);
    for (const TimelineMark::Number& number : mark.numbers) {
      if (number.name == nullptr) break;
      begin.message(kAnnotations,
                    PackedMessage().text(kAnnotationName, number.name).number(kUint, number.value));
    }
    if (mark.result != nullptr)
      begin.message(kAnnotations, PackedMessage().text(kAnnotationName, "result").text(kString, mark.result));
    add(mark.from, begin);
    for (const TimelineMark* compression_trigger : slice.instants) {
      add(compression_trigger->from, PackedMessage()
                                         .number(kType, kInstant)
                                         .number(kTrack, track)
                                         .text(kCategories, "kvtwin")
                                         .text(kName, compression_trigger->name));
    }
    if (!slice.open) add(Instant{slice.to}, PackedMessage().number(kType, kSliceEnd).number(kTrack, track));
  }

  void describe(const PackedMessage& track) { tracks_.push_back(track); }
  void add(Instant at, const PackedMessage& event) { events_.push_back({at.ns, event}); }

  std::vector<PackedMessage> tracks_;
  std::vector<Packet> events_;
};

}  // namespace

std::string Timeline::perfetto() const {
  Writer writer(engines_.size());
  writer.slices(marks_);
  writer.counts(marks_);
  return writer.finish();
}

}  // namespace kvtwin
