#include "engine/recorder/recorder_formats.h"

namespace kvtwin {
namespace {

constexpr uint32_t kPairs = kModals * kSemantics;

}  // namespace

bool read_precision(const v1::EngineConfig::RecordedPrecision& in, PrecisionSpec* out) {
  if (in.ageing() > static_cast<uint32_t>(Ageing::kRequantise)) return false;
  out->group = in.group();
  out->residual_tokens = in.residual_tokens();
  out->four_bit_tags = in.four_bit_tags() & kAllTags;
  out->bits_above_two = in.bits_above_two();
  out->ageing = static_cast<Ageing>(in.ageing());
  return true;
}

void write_precision(const PrecisionSpec& in, v1::EngineConfig::RecordedPrecision* out) {
  out->set_group(in.group);
  out->set_residual_tokens(in.residual_tokens);
  out->set_four_bit_tags(in.four_bit_tags);
  out->set_bits_above_two(in.bits_above_two);
  out->set_ageing(static_cast<uint32_t>(in.ageing));
}

bool read_roles(const v1::ClientEvent::Ready& in, std::vector<RoleRun>* roles) {
  if (in.role_size() != in.role_count_size()) return false;
  for (int i = 0; i < in.role_size(); ++i) {
    const uint32_t code = in.role(i);
    roles->push_back({{code / kPairs, static_cast<Modal>(code % kPairs / kSemantics),
                       static_cast<Semantic>(code % kSemantics)},
                      in.role_count(i)});
  }
  return true;
}

void write_roles(std::span<const RoleRun> roles, v1::ClientEvent::Ready* out) {
  for (const RoleRun& run : roles) {
    out->add_role(run.role.turn * kPairs + static_cast<uint32_t>(run.role.modal) * kSemantics +
                  static_cast<uint32_t>(run.role.semantic));
    out->add_role_count(run.count);
  }
}

bool read_spans(const v1::ClientEvent::Ready& in, PromptSpans* spans) {
  if (in.span_size() == 0) return true;
  if (in.span_size() != 5) return false;
  *spans = {in.span(0), {in.span(1), in.span(2)}, {in.span(3), in.span(4)}};
  return spans->known() && spans->valid(in.prompt_tokens());
}

void write_spans(const PromptSpans& spans, v1::ClientEvent::Ready* out) {
  if (!spans.known()) return;
  for (const uint32_t number :
       {spans.prefix, spans.query.begin, spans.query.end, spans.around.begin, spans.around.end})
    out->add_span(number);
}

}  // namespace kvtwin
