#include "models/cost_tables/measured_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/cost/graph_shapes.h"

namespace kvtwin {
namespace {

// Relative: how much the same step differs between runs, which tables do not show. The mean of two measured
// 90th percentiles: 1.54 % on H200s and 2.08 % on H100s (reports/evidence/validation/between_runs.py).
constexpr double kBetweenRuns = 0.0181;

double squared(double x) { return x * x; }

// Starting and ending the kernel, in units of ChunkTiles.
constexpr double kChunkFixed = 2;

Measured blend(const Measured& a, const Measured& b, double weight) {
  const auto one = [weight](double from, double to) { return std::max(0.0, from + (to - from) * weight); };
  return {one(a.us, b.us), one(a.p10, b.p10), one(a.p90, b.p90)};
}

Measured times(const Measured& m, double factor) { return {m.us * factor, m.p10 * factor, m.p90 * factor}; }

Reading between(const Reading& wide, const Reading& low_bit, double fraction) {
  const Evidence here = fraction < 1 ? Evidence::kInterpolated : Evidence::kMeasured;
  return {blend(wide.time, low_bit.time, fraction), worse(here, worse(wide.evidence, low_bit.evidence))};
}

Reading sum(const Reading& a, const Reading& b) {
  return {{a.time.us + b.time.us, a.time.p10 + b.time.p10, a.time.p90 + b.time.p90},
          worse(a.evidence, b.evidence)};
}

// 90th percentile of the relative error of held-out steps; 0: there are none.
double held_out_error(const MeasuredDevice& device) {
  std::vector<double> errors;
  for (const HeldOutStep& step : device.held_out) errors.push_back(std::abs(step.error()));
  return errors.empty() ? 0 : measured_of(errors).p90;
}

// Limits on the effect of load, relative to a step as measured: a table beyond them is invalid.
constexpr double kPaceLeast = 0.5, kPaceMost = 1.5;

void add(const Reading& more, Reading* to) { *to = sum(*to, more); }

double ratio(double here, double usual) {
  return usual > 0 ? std::clamp(here / usual, kPaceLeast, kPaceMost) : 1;
}

// Converts times to times per unit of ChunkTiles.
MeasuredTable per_unit(MeasuredTable table, ChunkTiles* tiles) {
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const ChunkShape chunk{table.rows[i], table.context.empty() ? 0 : table.context[i], 0};
    table.at[i] = times(table.at[i], 1 / (tiles->makespan({&chunk, 1}) + kChunkFixed));
  }
  return table;
}

}  // namespace

ChunkShape merged(std::span<const ChunkShape> chunks) {
  ChunkShape all;
  double kv_entries = 0;
  for (const ChunkShape& chunk : chunks) {
    all.tokens += chunk.tokens;
    kv_entries += static_cast<double>(chunk.tokens) * chunk.context;
  }
  if (all.tokens > 0) all.context = static_cast<uint32_t>(kv_entries / all.tokens + 0.5);
  return all;
}

MeasuredShapes::MeasuredShapes(const LlmSpec& llm)
    : hidden(std::to_string(llm.hidden)),
      intermediate(std::to_string(llm.intermediate)),
      vocab(std::to_string(llm.vocab)),
      heads(fmt::format("{}/{}x{}", llm.query_heads, llm.kv_heads, llm.head_dim)),
      qkv(fmt::format("{}x{}", (llm.query_heads + 2 * llm.kv_heads) * llm.head_dim, llm.hidden)),
      attention_out(fmt::format("{}x{}", llm.hidden, llm.query_heads * llm.head_dim)),
      gate_up(fmt::format("{}x{}", 2 * llm.intermediate, llm.hidden)),
      down(fmt::format("{}x{}", llm.hidden, llm.intermediate)),
      logits(fmt::format("{}x{}", llm.vocab, llm.hidden)),
      model(llm.name) {}

MeasuredCurves::MeasuredCurves(const MeasuredTable& table) {
  std::vector<uint32_t> rows, contexts;
  std::vector<Measured> at;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    if (rows.empty() || rows.back() != table.rows[i]) {
      if (!rows.empty()) curves_.push_back({Axis(contexts), std::move(at)});
      rows.push_back(table.rows[i]), contexts.clear(), at.clear();
    }
    contexts.push_back(table.context.empty() ? 0 : table.context[i]);
    at.push_back(table.at[i]);
  }
  curves_.push_back({Axis(contexts), std::move(at)});
  rows_ = Axis(rows);
}

Reading MeasuredCurves::at(double rows, double context) const {
  const Bracket r = rows_.bracket(rows);
  Evidence evidence = r.evidence;
  const auto on = [&](uint32_t i) {
    const Curve& curve = curves_[i];
    if (curve.at.size() == 1 && curve.axis.at(0) == 0) return curve.at[0];
    const Bracket c = curve.axis.bracket(context);
    evidence = worse(evidence, c.evidence);
    return c.weight == 0 ? curve.at[c.low] : blend(curve.at[c.low], curve.at[c.high], c.weight);
  };
  const Measured low = on(r.low);
  const Measured value = r.weight == 0 ? low : blend(low, on(r.high), r.weight);
  return {value, evidence};
}

double MeasuredCurves::context_most(double rows) const {
  const Bracket r = rows_.bracket(rows);
  const auto last = [&](uint32_t i) { return curves_[i].axis.at(curves_[i].axis.size() - 1); };
  return std::min(last(r.low), last(r.weight == 0 ? r.low : r.high));
}

MeasuredCost::MeasuredCost(const LlmSpec& llm, uint32_t sms, const HostTime& host)
    : PartwiseCost(host),
      tiles_(llm.kv_heads, std::max(1u, llm.query_heads / llm.kv_heads), sms),
      layers_(llm.layers) {}

Result<std::unique_ptr<MeasuredCost>> MeasuredCost::make(const MeasuredDevice& device, const LlmSpec& llm,
                                                         const HostTime& host, const std::string& where,
                                                         DecodeGraphs graphs, const std::string& format) {
  if (llm.moe_layers() > 0)
    return make_error(where, fmt::format("has no expert kernels, but {} is a mixture of experts", llm.name),
                      "leave the profile out to use the roofline");
  const MeasuredShapes s(llm);
  auto out = std::unique_ptr<MeasuredCost>(new MeasuredCost(llm, device.sm_count, host));
  out->graphs_ = graphs;
  const struct {
    const char* operation;
    std::optional<MeasuredCurves>* to;
  } more[] = {{"launched host", &out->launched_host_},
              {"chunk host mixed", &out->concurrent_host_},
              {"chunk host several", &out->several_host_}};
  for (const auto& one : more) {
    if (const MeasuredTable* const table = device.table(one.operation, s.model); table != nullptr)
      one.to->emplace(*table);
  }
  const struct {
    const char* operation;
    const std::string& shape;
    MeasuredCurves* to;
  } wanted[] = {{"embed", s.hidden, &out->embed_},
                {"norm", s.hidden, &out->norm_},
                {"qkv", s.qkv, &out->qkv_},
                {"append", s.heads, &out->append_},
                {"attention out", s.attention_out, &out->attention_out_},
                {"gate up", s.gate_up, &out->gate_up_},
                {"activation", s.intermediate, &out->activation_},
                {"down", s.down, &out->down_},
                {"logits", s.logits, &out->logits_},
                {"sample", s.vocab, &out->sample_},
                {"decode attention", s.heads, &out->decode_},
                {"chunk attention", s.heads, &out->chunk_},
                {"decode host", s.model, &out->decode_host_},
                {"chunk host", s.model, &out->chunk_host_}};
  for (const auto& one : wanted) {
    const MeasuredTable* const table = device.table(one.operation, one.shape);
    if (table == nullptr)
      return make_error(where,
                        fmt::format("{} of {} was not measured, which {} needs (it was measured for {})",
                                    one.operation, one.shape, llm.name, device.model),
                        fmt::format("kvtwin calibrate device --model={}; or leave the profile out to use the "
                                    "roofline",
                                    llm.name));
    *one.to = MeasuredCurves(one.to == &out->chunk_ ? per_unit(*table, &out->tiles_) : *table);
    if (one.to == &out->decode_host_) out->decode_host_least_ = table->at.front();
  }
  out->take_clock(device, s.model);
  if (Result<void> ok = out->take_format(device, format, s.heads, where); !ok)
    return tl::unexpected<Error>(ok.error());
  out->interpolation_ = held_out_error(device);
  return out;
}

// Reads how earlier steps affect the clock, as far as it was measured.
void MeasuredCost::take_clock(const MeasuredDevice& device, const std::string& model) {
  const MeasuredTable* const after_load = device.table("chunk after load", model);
  const MeasuredFigure* const window = device.figure("chunk load window");
  if (after_load != nullptr && window != nullptr) {
    after_load_ = MeasuredCurves(*after_load);
    load_window_ = ticks_from_us(window->value * 1e3);
  }
  if (const MeasuredFigure* const few = device.figure("chunk tables hold unloaded up to"); few != nullptr)
    unloaded_rows_ = few->value;
  const MeasuredTable* const busy_period = device.table("chunk by busy time", model);
  const MeasuredFigure* const pause = device.figure("chunk load is forgotten in");
  const MeasuredFigure* const from = device.figure("chunk tables hold from");
  const MeasuredFigure* const to = device.figure("chunk tables hold to");
  if (busy_period != nullptr && !busy_period->context.empty() && pause != nullptr && from != nullptr &&
      to != nullptr) {
    busy_curves_ = MeasuredCurves(*busy_period);
    forgets_after_ = ticks_from_us(pause->value * 1e3);
    busy_from_ = from->value, busy_to_ = to->value;
    busy_first_ = busy_period->context.front(), busy_last_ = busy_period->context.back();
    busy_rows_ = busy_period->rows.front();
  }
  const MeasuredTable* const decode_after = device.table("decode after load", model);
  if (decode_after != nullptr && !decode_after->context.empty()) {
    decode_after_.emplace(*decode_after);
    decode_after_last_ = decode_after->context.back();
    decode_after_longest_ = decode_after->rows.back();
  }
}

Result<void> MeasuredCost::take_format(const MeasuredDevice& device, const std::string& name,
                                       const std::string& heads, const std::string& where) {
  if (name.empty()) return {};
  const auto table = [&](const char* operation) {
    const MeasuredKv* const format = device.format(name);
    return format == nullptr ? nullptr : format->table(operation, heads);
  };
  const MeasuredTable *const decode = table("decode attention"), *const packing = table("chunk packing");
  if (decode == nullptr || packing == nullptr)
    return make_error(where, fmt::format("has no attention over {} KV of {}", name, heads),
                      "kvtwin calibrate device measures it on a GPU; or leave the profile out: the roofline "
                      "prices formats by their bytes");
  decode_ = MeasuredCurves(*decode), packing_ = MeasuredCurves(*packing), packs_ = true;
  const MeasuredTable* const decode_low_bit = table("decode attention low-bit");
  const MeasuredTable* const packing_low_bit = table("chunk packing low-bit");
  low_bit_known_ = decode_low_bit != nullptr && packing_low_bit != nullptr;
  if (!low_bit_known_) return {};
  decode_low_bit_ = MeasuredCurves(*decode_low_bit), packing_low_bit_ = MeasuredCurves(*packing_low_bit);
  return {};
}

std::vector<MeasuredCost::Op> MeasuredCost::dense(uint32_t tokens) const {
  const PartPlace layer = PartPlace::kLayer;
  return {{"embed", PartKind::kEmbedding, PartPlace::kBefore, 1, embed_.at(tokens)},
          {"norm", PartKind::kNorm, layer, 2 * layers_, norm_.at(tokens)},
          {"qkv", PartKind::kGemm, layer, layers_, qkv_.at(tokens)},
          {"append", PartKind::kRope, layer, layers_, append_.at(tokens)},
          {"attention out", PartKind::kGemm, layer, layers_, attention_out_.at(tokens)},
          {"gate up", PartKind::kGemm, layer, layers_, gate_up_.at(tokens)},
          {"activation", PartKind::kActivation, layer, layers_, activation_.at(tokens)},
          {"down", PartKind::kGemm, layer, layers_, down_.at(tokens)}};
}

// A step in which no token samples runs no output head.
std::vector<MeasuredCost::Op> MeasuredCost::head(uint32_t rows) const {
  if (rows == 0) return {};
  return {{"final norm", PartKind::kNorm, PartPlace::kAfter, 1, norm_.at(rows)},
          {"logits", PartKind::kLmHead, PartPlace::kAfter, 1, logits_.at(rows)},
          {"sample", PartKind::kSample, PartPlace::kAfter, 1, sample_.at(rows)}};
}

Reading MeasuredCost::decode_attention(const StepShape& shape) const {
  const auto kv_entries = static_cast<double>(shape.decode_context_sum);
  const Reading wide = decode_.at(shape.decodes, kv_entries);
  if (!low_bit_known_ || shape.decode_low_bit_sum == 0) return wide;
  return between(wide, decode_low_bit_.at(shape.decodes, kv_entries),
                 static_cast<double>(shape.decode_low_bit_sum) / kv_entries);
}

// Beyond the contexts that were measured, a unit of work takes what it takes in the longest one: its trend
// there is mostly the spread of two measurements.
Reading MeasuredCost::chunk_attention(const StepShape& shape) {
  const ChunkShape all = merged(shape.chunks);
  const double measured = chunk_.context_most(all.tokens);
  Reading unit = chunk_.at(all.tokens, std::min<double>(all.context, measured));
  if (all.context > measured) unit.evidence = worse(unit.evidence, Evidence::kExtrapolated);
  unit.time = times(unit.time, tiles_.makespan(shape.chunks) + kChunkFixed);
  // That chunks share the SMs in this way is a rule, not a measurement.
  if (shape.chunks.size() > 1) unit.evidence = worse(unit.evidence, Evidence::kInterpolated);
  return packs_ ? sum(unit, packing(shape.chunks)) : unit;
}

// Every chunk's own history is unpacked, so their KV entries add up.
Reading MeasuredCost::packing(std::span<const ChunkShape> chunks) const {
  double tokens = 0, kv_entries = 0, low_bit = 0;
  for (const ChunkShape& chunk : chunks)
    tokens += chunk.tokens, kv_entries += chunk.context, low_bit += chunk.low_bit;
  const Reading wide = packing_.at(tokens, kv_entries);
  if (!low_bit_known_ || low_bit == 0) return wide;
  return between(wide, packing_low_bit_.at(tokens, kv_entries), low_bit / kv_entries);
}

// Host time of a step that only decodes.
Reading MeasuredCost::decode_host(const StepShape& shape) const {
  const bool replay = graphs_ != DecodeGraphs::kNone && shape.graph == GraphUse::kReplayed;
  return (replay || !launched_host_ ? decode_host_ : *launched_host_).at(shape.decodes);
}

// Files without "chunk host mixed": decodes add the difference of their host time to that of the smallest
// batch.
Reading MeasuredCost::host(const StepShape& shape) const {
  if (shape.chunks.empty()) return decode_host(shape);
  const uint32_t rows = std::max(shape.tokens, shape.tokens_padded);
  Reading out = chunk_host_.at(rows);
  if (several_host_ && shape.chunks.size() > 1 && rows <= unloaded_rows_)
    add(several_host_->at(static_cast<double>(shape.chunks.size())), &out);
  if (shape.decodes == 0) return out;
  if (concurrent_host_) {
    add(concurrent_host_->at(shape.decodes), &out);
    return out;
  }
  const Reading concurrent = decode_host_.at(shape.decodes);
  out.evidence = worse(out.evidence, concurrent.evidence);
  out.time.us += std::max(0.0, concurrent.time.us - decode_host_least_.us);
  out.time.p10 += std::max(0.0, concurrent.time.p10 - decode_host_least_.p10);
  out.time.p90 += std::max(0.0, concurrent.time.p90 - decode_host_least_.p90);
  return out;
}

size_t MeasuredCost::attention(const StepShape& shape, std::array<Op, kAttentionOpsMax>* out) {
  size_t count = 0;
  if (shape.decodes > 0)
    (*out)[count++] = {"decode attention", PartKind::kAttention, PartPlace::kLayer, layers_,
                       decode_attention(shape)};
  if (!shape.chunks.empty())
    (*out)[count++] = {"chunk attention", PartKind::kAttention, PartPlace::kLayer, layers_,
                       chunk_attention(shape)};
  if (count > 0) (*out)[count++] = {"host", PartKind::kHost, PartPlace::kAfter, 1, host(shape)};
  return count;
}

StepPart MeasuredCost::part_of(const Op& op) {
  return {op.name, op.kind, op.place, op.times, ticks_from_us(op.reading.time.us), op.reading.evidence};
}

// The clock that chunks lowered rises for a while.
double MeasuredCost::decode_pace(const StepShape& shape) const {
  if (!decode_after_ || shape.calm_ms >= decode_after_last_) return 1;
  const double length = std::min<double>(shape.busy_before_ms, decode_after_longest_);
  return ratio(decode_after_->at(length, shape.calm_ms).time.us,
               decode_after_->at(length, decode_after_last_).time.us);
}

// Tables of chunks were measured after a short load: the recent past contains chunks, the time before it does
// not. Tables of few tokens were measured one by one between decodes, as in serving.
double MeasuredCost::pace(const StepShape& shape) const {
  if (shape.chunks.empty()) return decode_pace(shape);
  const double rows = std::max(shape.tokens, shape.tokens_padded);
  double out = 1;
  const bool unloaded = rows <= unloaded_rows_;
  if (load_window_ > 0)
    out *= ratio(after_load_.at(rows, shape.chunk_load).time.us,
                 after_load_.at(rows, unloaded ? 0 : kSustainedLoad).time.us);
  if (forgets_after_ > 0 && !unloaded) {
    const double usual = usual_chunk(rows);
    const double now = std::clamp<double>(shape.busy_ms, busy_first_, busy_last_);
    out *= 1 + (ratio(busy_curves_.at(rows, now).time.us, usual) - 1) * shape.chunk_load / kSustainedLoad;
  }
  return out;
}

// What the effect of a busy period is relative to. The period was measured with chunks of one size. For this
// size it is the other tables' own time, so that the price becomes the period's time, a mean of more steps.
// For others it is the period's time where the other tables were measured: the mean of five points.
double MeasuredCost::usual_chunk(double rows) const {
  if (rows == busy_rows_ && load_window_ > 0) return after_load_.at(rows, kSustainedLoad).time.us;
  double usual = 0;
  for (int i = 0; i < 5; ++i)
    usual += busy_curves_.at(rows, busy_from_ + (busy_to_ - busy_from_) * (i + 0.5) / 5).time.us / 5;
  return usual;
}

std::vector<StepPart> MeasuredCost::dense_ops(uint32_t tokens) const {
  std::vector<StepPart> out;
  for (const Op& op : dense(tokens)) out.push_back(part_of(op));
  return out;
}

std::vector<StepPart> MeasuredCost::head_ops(uint32_t rows) const {
  std::vector<StepPart> out;
  for (const Op& op : head(rows)) out.push_back(part_of(op));
  return out;
}

size_t MeasuredCost::attention_ops(const StepShape& shape, AttentionOps* out) {
  std::array<Op, kAttentionOpsMax> ops{};
  const size_t count = attention(shape, &ops);
  std::transform(ops.begin(), ops.begin() + count, out->begin(), part_of);
  return count;
}

// Operations differ from their medians independently of each other; interpolation and the runs that are
// served differ from the tables as a whole.
StepRange MeasuredCost::range(const StepShape& shape) {
  double sum = 0, below = 0, above = 0;
  const auto add = [&](const Op& op) {
    const Measured& time = op.reading.time;
    sum += op.times * time.us;
    below += squared(op.times * (time.us - time.p10)), above += squared(op.times * (time.p90 - time.us));
  };
  for (const Op& op : dense(std::max(shape.tokens, shape.tokens_padded))) add(op);
  for (const Op& op : head(shape.logits_rows)) add(op);
  std::array<Op, kAttentionOpsMax> ops{};
  const size_t count = attention(shape, &ops);
  for (size_t i = 0; i < count; ++i) add(ops[i]);
  const double whole = squared(sum * interpolation_) + squared(sum * kBetweenRuns);
  const double factor = pace(shape);
  return {ticks_from_us(std::max(0.0, sum - std::sqrt(below + whole)) * factor),
          ticks_from_us((sum + std::sqrt(above + whole)) * factor)};
}

}  // namespace kvtwin
