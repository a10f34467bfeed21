// All formats of KV (docs/design/methods/triaxialkv.md#numbers, #serving).

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct PrecisionRow {
  PolicyInfo info;
  PrecisionTraits traits;
};

constexpr PrecisionRow kPrecisions[] = {
    {{"precision", "bf16", "Every KV entry is stored as the model computed it."}, {}},
    {{"precision", "fp8", "E4M3, one byte per value; half of bf16's memory."},
     {.prompt_format = Format::kFp8, .decode_format = Format::kFp8}},
    {{"precision", "int4",
      "4 bits per value, scale and zero per `group` channels of a token (precision_options.group: 32, 64, "
      "128)."},
     {.prompt_format = Format::kInt4, .decode_format = Format::kInt4, .reads_group = true}},
    {{"precision", "fp4", "E2M1 with a power of two per 16 channels: the uniform 4-bit float baseline."},
     {.prompt_format = Format::kFp4, .decode_format = Format::kFp4}},
    {{"precision", "kivi_int2",
      "2 bits per value, keys per channel and values per token; the last precision_options.residual_tokens "
      "of a request stay bf16."},
     {.prompt_format = Format::kInt2,
      .decode_format = Format::kInt2,
      .reads_group = true,
      .exact = ExactTokens::kResidual}},
    {{"precision", "triaxial",
      "2 or 4 bits by a token's tag (age of its turn, modality, role): two pools in one address space, "
      "decoded tokens in int4. precision_options.tag_map names the calibrated map."},
     {.prompt_format = Format::kInt2,
      .decode_format = Format::kInt4,
      .by_tag = true,
      .reads_group = true,
      .exact = ExactTokens::kGroup}},
};

}  // namespace

uint32_t exact_tokens_max(const PrecisionTraits& traits, const PrecisionSpec& spec) {
  switch (traits.exact) {
    case ExactTokens::kNone:
      return 0;
    case ExactTokens::kResidual:
      return spec.residual_tokens;
    case ExactTokens::kGroup:
      return spec.group - 1;
  }
  return 0;
}

void append_precisions(std::vector<PolicyInfo>* out) { append_rows(kPrecisions, out); }
PrecisionTraits precision_traits(std::string_view name) { return row_of(kPrecisions, name).traits; }

}  // namespace kvtwin
