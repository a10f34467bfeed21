// Conversion between a log's records and the precision axis, token roles, and spans of prompts.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_FORMATS_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_FORMATS_H_

#include <span>
#include <vector>

#include "engine/base/prompt_spans.h"
#include "engine/kv/precision_spec.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {

// False: `in` holds a choice that this version does not know.
bool read_precision(const v1::EngineConfig::RecordedPrecision& in, PrecisionSpec* out);
void write_precision(const PrecisionSpec& in, v1::EngineConfig::RecordedPrecision* out);

// False: the lists differ in length.
bool read_roles(const v1::ClientEvent::Ready& in, std::vector<RoleRun>* roles);
void write_roles(std::span<const RoleRun> roles, v1::ClientEvent::Ready* out);
// False: they are no spans of a prompt of in.prompt_tokens().
bool read_spans(const v1::ClientEvent::Ready& in, PromptSpans* spans);
void write_spans(const PromptSpans& spans, v1::ClientEvent::Ready* out);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_FORMATS_H_
