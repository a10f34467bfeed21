#include "tests/support/perfetto_trace.h"

#include <fmt/format.h>

#include "tests/support/perfetto_trace.pb.h"

namespace kvtwin::testing {
namespace {

namespace read = perfetto_as_read;

// True if the message, or one nested in it, has fields that the schema does not know.
bool has_unknown(const google::protobuf::Message& message) {
  const auto* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) return true;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (has_unknown(reflection->GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      if (has_unknown(reflection->GetRepeatedMessage(message, field, i))) return true;
    }
  }
  return false;
}

struct Track {
  std::string name;
  bool counter = false;
  uint64_t last = 0;
  std::vector<size_t> open;  // slices
};

class Reader {
 public:
  PerfettoTrace take(const read::Trace& trace) {
    if (has_unknown(trace)) problem("there are fields that the format does not have");
    bool first = true;
    for (const read::TracePacket& packet : trace.packet()) {
      if (packet.trusted_packet_sequence_id() == 0) problem("a packet has no sequence id");
      if (first && (packet.sequence_flags() & 1) == 0)
        problem("the sequence does not begin with cleared state");
      first = false;
      if (packet.has_track_descriptor()) describe(packet.track_descriptor());
      if (packet.has_track_event()) event(packet.timestamp(), packet.has_timestamp(), packet.track_event());
      if (!packet.has_track_descriptor() && !packet.has_track_event()) problem("a packet is empty");
    }
    return std::move(out_);
  }

 private:
  void problem(std::string what) { out_.problem.push_back(std::move(what)); }

  void describe(const read::TrackDescriptor& track) {
    if (!track.has_uuid() || track.uuid() == 0) return problem("a track has no uuid");
    const std::string name = track.has_process() ? track.process().process_name() : track.name();
    if (name.empty()) problem("a track has no name");
    if (!tracks_.try_emplace(track.uuid(), Track{name, track.has_counter(), 0, {}}).second)
      problem(fmt::format("track {} is described twice", track.uuid()));
    if (track.has_process()) {
      out_.processes.push_back(name);
      if (track.process().pid() <= 0) problem("a process has no pid");
    } else if (!tracks_.contains(track.parent_uuid())) {
      problem(fmt::format("track \"{}\" has an unknown parent", name));
    }
  }

  void event(uint64_t at, bool timed, const read::TrackEvent& event) {
    const auto found = tracks_.find(event.track_uuid());
    if (found == tracks_.end()) return problem("an event is on a track that is not described before it");
    Track& track = found->second;
    if (!timed) problem("an event has no time");
    if (at < track.last) problem(fmt::format("track \"{}\": time goes back to {}", track.name, at));
    if (at < last_) problem(fmt::format("the trace goes back to {}", at));
    track.last = last_ = at;
    if (track.counter != (event.type() == read::TrackEvent::TYPE_COUNTER))
      return problem(fmt::format("track \"{}\": counters and other events are mixed", track.name));
    switch (event.type()) {
      case read::TrackEvent::TYPE_COUNTER:
        if (!event.has_counter_value()) problem("a counter has no value");
        out_.counters[track.name].emplace_back(at, event.counter_value());
        return;
      case read::TrackEvent::TYPE_SLICE_BEGIN:
        return begin(at, &track, event);
      case read::TrackEvent::TYPE_SLICE_END:
        if (track.open.empty())
          return problem(fmt::format("track \"{}\": an end without a begin", track.name));
        out_.slices[track.open.back()].to = at;
        track.open.pop_back();
        return;
      case read::TrackEvent::TYPE_INSTANT:
        if (!track.open.empty()) out_.slices[track.open.back()].instants.push_back(event.name());
        return;
      case read::TrackEvent::TYPE_UNSPECIFIED:
        return problem("an event has no type");
    }
  }

  void begin(uint64_t at, Track* track, const read::TrackEvent& event) {
    if (event.name().empty()) problem("a slice has no name");
    // The format allows nested slices; kvtwin writes none.
    if (!track->open.empty()) problem(fmt::format("track \"{}\": slices overlap at {}", track->name, at));
    track->open.push_back(out_.slices.size());
    PerfettoSlice slice{track->name, event.name(), at, UINT64_MAX, {}, {}};
    for (const read::DebugAnnotation& one : event.debug_annotations())
      slice.annotations[one.name()] =
          one.has_string_value() ? one.string_value() : fmt::format("{}", one.uint_value());
    out_.slices.push_back(std::move(slice));
  }

  std::map<uint64_t, Track> tracks_;
  uint64_t last_ = 0;
  PerfettoTrace out_;
};

}  // namespace

PerfettoTrace read_perfetto(const std::string& bytes) {
  read::Trace trace;
  if (!trace.ParseFromString(bytes)) {
    PerfettoTrace out;
    out.problem.push_back("these bytes are no trace");
    return out;
  }
  return Reader().take(trace);
}

}  // namespace kvtwin::testing
