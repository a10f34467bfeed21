#include "engine/methods/axis_factories.h"

namespace kvtwin {
namespace {

// One format for all KV entries.
class Uniform final : public Precision {
 public:
  explicit Uniform(Format format) : format_(format) {}
  Format prompt_format() const override { return format_; }
  Format decode_format() const override { return format_; }

 private:
  const Format format_;
};

// int2, except the newest KV entries (docs/design/methods/triaxialkv.md#numbers).
class Kivi final : public Precision {
 public:
  explicit Kivi(const PrecisionSpec& spec) : spec_(spec) {}
  Format prompt_format() const override { return Format::kInt2; }
  Format decode_format() const override { return Format::kInt2; }
  uint32_t exact_tokens_max() const override { return spec_.residual_tokens; }

 private:
  const PrecisionSpec spec_;
};

// int2 or int4 by tag; decoded KV entries are int4 (docs/design/methods/triaxialkv.md#serving).
class TriAxial final : public Precision {
 public:
  explicit TriAxial(const PrecisionSpec& spec) : spec_(spec) {}
  Format prompt_format() const override { return Format::kInt2; }
  Format decode_format() const override { return Format::kInt4; }
  bool by_tag() const override { return true; }
  uint32_t exact_tokens_max() const override { return spec_.group - 1; }

 private:
  const PrecisionSpec spec_;
};

}  // namespace

std::unique_ptr<Precision> make_precision(std::string_view name, const PrecisionSpec& spec) {
  if (name == "bf16") return std::make_unique<Uniform>(Format::kBf16);
  if (name == "fp8") return std::make_unique<Uniform>(Format::kFp8);
  if (name == "int4") return std::make_unique<Uniform>(Format::kInt4);
  if (name == "fp4") return std::make_unique<Uniform>(Format::kFp4);
  if (name == "kivi_int2") return std::make_unique<Kivi>(spec);
  if (name == "triaxial") return std::make_unique<TriAxial>(spec);
  return nullptr;
}

}  // namespace kvtwin
