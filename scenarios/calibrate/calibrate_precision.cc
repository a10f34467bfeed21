#include "scenarios/calibrate/calibrate_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "kernels/quant/triaxial_allocate.h"
#include "kernels/quant/triaxial_calibrate.h"

namespace kvtwin {
namespace {

constexpr const char* kTemporalNames[] = {"older", "turn_m2", "turn_m1", "current"};
constexpr const char* kModalNames[] = {"text", "image"};
constexpr const char* kSemanticNames[] = {"inst",      "user", "assistant", "reasoning",
                                          "tool_call", "obs",  "delim"};

std::string tag_name(uint32_t tag) {
  return fmt::format("{} {} {}", kTemporalNames[tag / (kModals * kSemantics)],
                     kModalNames[tag / kSemantics % kModals], kSemanticNames[tag % kSemantics]);
}

// The tag that represents all tags which differ from `tag` in the ignored axis only. "inst" is not merged,
// because its tokens are counted differently (docs/design/methods/triaxialkv.md#calibration).
uint8_t standing_for(uint32_t tag, BlindAxis blind) {
  constexpr uint32_t kPairs = kModals * kSemantics;
  if (blind == BlindAxis::kTemporal) tag %= kPairs;
  if (blind == BlindAxis::kSemantic) tag += static_cast<uint32_t>(Semantic::kObs) - tag % kSemantics;
  return static_cast<uint8_t>(tag);
}

std::vector<uint8_t> tags_of(const ContextRoles& roles, BlindAxis blind) {
  std::vector<uint8_t> out;
  for (const RoleRun& run : roles.runs)
    out.insert(out.end(), run.count, standing_for(tag_code(run.role, roles.turn), blind));
  return out;
}

// Gives every tag the bits of the tag that represents it.
void spread_over_axis(BlindAxis blind, TagMap* map) {
  uint64_t four = 0;
  for (uint32_t tag = 0; tag < kTags; ++tag)
    four |= ((map->four_bit_tags >> standing_for(tag, blind)) & 1) << tag;
  map->four_bit_tags = four;
}

// Converts heads-first to tokens-first, the order of AttentionCapture.
std::vector<float> by_token(const kernels::HeadsView& view) {
  std::vector<float> out;
  out.reserve(size_t{view.rows} * view.heads * view.dim);
  for (uint32_t i = 0; i < view.rows; ++i) {
    for (uint32_t h = 0; h < view.heads; ++h)
      out.insert(out.end(), view.row(h, i), view.row(h, i) + view.dim);
  }
  return out;
}

}  // namespace

std::vector<uint32_t> spread_layers(uint32_t layers, uint32_t count) {
  count = std::clamp(count, 1u, layers);
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back((2 * i + 1) * layers / (2 * count));
  return out;
}

Result<TagMap> calibrate_precision(const Scenario& scenario, const PrecisionRequest& request,
                                   CalibrationModel* model) {
  const LlmSpec& llm = model->llm();
  const uint32_t group = scenario.values.policies().precision_options().group();
  if (group == 0 || llm.head_dim % group != 0) {
    return make_error(
        scenario.where("policies.precision_options.group"),
        fmt::format("group is {}, the head dimension of {} is {}", group, llm.name, llm.head_dim),
        "a divisor of that");
  }
  const Result<std::vector<ContextRoles>> roles = context_roles(scenario, model->contexts());
  if (!roles) return tl::unexpected<Error>(roles.error());
  const std::vector<uint32_t> layers = spread_layers(llm.layers, request.layers);
  std::vector<std::vector<kernels::TagLosses>> losses(layers.size());
  model->each({}, [&](size_t index, cpu::CapturedPass* pass) {
    const uint32_t kv_entries = pass->tokens(), rows = std::min(request.rows, kv_entries);
    const std::vector<uint8_t> tags = tags_of((*roles)[index], request.blind);
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::vector<float> q = by_token(pass->q(layers[i], kv_entries - rows, rows));
      const std::vector<float> k = by_token(pass->k(layers[i], 0, kv_entries));
      const std::vector<float> v = by_token(pass->v(layers[i], 0, kv_entries));
      losses[i].push_back(
          kernels::measure_tag_losses({q, k, v, tags, rows, kv_entries, llm.query_heads, llm.kv_heads,
                                       llm.head_dim, kv_entries - rows, group}));
    }
  });
  const kernels::TagTable table = kernels::combine_tag_losses(losses);
  const kernels::TagBits bits = request.greedy ? kernels::allocate_greedy(table, request.bits_milli)
                                               : kernels::allocate_exact(table, request.bits_milli);
  TagMap out;
  out.name = fmt::format("triaxial-{}", llm.name);
  out.model = llm.name;
  out.source = fmt::format("kvtwin calibrate policy precision, scenario {}, seed {}", scenario.values.name(),
                           scenario.values.seed());
  out.bits = request.bits_milli / 1000.0;
  out.exact = !request.greedy;
  out.four_bit_tags = bits.four_bit_tags;
  for (uint32_t tag = 0; tag < kTags; ++tag)
    out.losses[tag] = {table.tags[tag].count, table.tags[tag].two_bits, table.tags[tag].four_bits};
  spread_over_axis(request.blind, &out);
  return out;
}

std::string tag_map_table(const TagMap& map) {
  uint64_t all = 0, four = 0;
  double loss = 0;
  std::string out =
      fmt::format("{}: {} bits on average, {}\n\n  {:<28} {:>10} {:>14} {:>14} {:>6}\n", map.name, map.bits,
                  map.exact ? "exact" : "greedy", "tag", "tokens", "D(2 bits)", "D(4 bits)", "bits");
  for (uint32_t tag = 0; tag < kTags; ++tag) {
    const TagMap::Loss& one = map.losses[tag];
    if (one.tokens == 0) continue;
    const bool is_four = ((map.four_bit_tags >> tag) & 1) != 0;
    all += one.tokens, four += is_four ? one.tokens : 0;
    loss += is_four ? one.four_bits : one.two_bits;
    fmt::format_to(std::back_inserter(out), "  {:<28} {:>10} {:>14.6g} {:>14.6g} {:>6}\n", tag_name(tag),
                   one.tokens, one.two_bits, one.four_bits, is_four ? 4 : 2);
  }
  const double fraction = all > 0 ? static_cast<double>(four) / static_cast<double>(all) : 0;
  fmt::format_to(std::back_inserter(out),
                 "\n  2 bits: {:.1f} % of the tokens, {:.3f} bits on average; loss {:.6g}\n",
                 100 * (1 - fraction), 2 + 2 * fraction, loss);
  return out;
}

}  // namespace kvtwin
