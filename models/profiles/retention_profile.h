// RetentionProfile: the fraction of its context that each KV head retains under a scorer, measured over
// calibration contexts, and what a policy reserves from it (docs/design/methods/tangram.md#calibration).
//
// A fraction is: KV entries retained outside window and sinks, over all tokens of the context. Heads are
// numbered by layer, then KV head: index = layer * kv_heads + head. Standard deviations are those of the
// population (/ n).

#ifndef KVTWIN_MODELS_PROFILES_RETENTION_PROFILE_H_
#define KVTWIN_MODELS_PROFILES_RETENTION_PROFILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct RetentionProfile {
  std::string name, model, scorer, level, source;
  double base_ratio = 0;  // requested, window and sinks included
  uint32_t layers = 0, kv_heads = 0;
  uint32_t window_tokens = 0, sink_tokens = 0;
  std::vector<uint32_t> layer_ids;                  // [layers], layer numbers in the model
  std::vector<uint32_t> context_tokens;             // [samples]
  std::vector<double> samples;                      // [samples][heads]; empty if the file does not store them
  std::vector<double> mu, sigma;                    // [heads]
  std::vector<double> fraction_mu, fraction_sigma;  // of fraction / mean of its sample

  uint32_t heads() const { return layers * kv_heads; }
};

// Reads an .npz of TANGRAM's tools: raw_ratio [1, samples, layers, kv_heads], base_ratios [1], sample_meta
// [samples, 4] (context, sinks, all, window), static_layer_ids [layers], meta (JSON as bytes).
Result<RetentionProfile> import_retention_npz(std::string_view bytes, const std::string& where);
Result<RetentionProfile> import_retention_npz_file(const std::string& path);

// Computes mu, sigma, fraction_mu and fraction_sigma from `samples`. REQUIRES: `samples` is not empty.
void complete_tables(RetentionProfile* profile);

// Reads and writes RetentionProfile of traces/proto/profile.proto. The text includes the budgets at `alpha`,
// and with `samples` the fractions of every context.
Result<RetentionProfile> parse_retention_profile(std::string_view text, const std::string& where);
std::string retention_textproto(const RetentionProfile& profile, double alpha, bool samples = false);

// The fractions to reserve, [heads]: min(1, mu + alpha sigma).
std::vector<double> budgets(std::span<const double> mu, std::span<const double> sigma, double alpha);

// The mean retained fraction of a context of `tokens` if `ratio` of them is requested and `window` are always
// retained (docs/design/methods/tangram.md#released-chunks, r_adj). `tokens` excludes sinks.
double adjusted_ratio(double ratio, uint64_t tokens, uint64_t window);

// Rounded once, to nearest; 1 << 32 is 1.
std::vector<uint64_t> to_q32(std::span<const double> fractions);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RETENTION_PROFILE_H_
