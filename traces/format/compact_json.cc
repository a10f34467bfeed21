#include "traces/format/compact_json.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

namespace kvtwin {
namespace {

using nlohmann::json;

constexpr size_t kNestingMax = 64;

// Builds the tree as nlohmann's own builder does, except for the separated arrays.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const CompactKeys& keys) : keys_(keys) {}

  CompactJson result;
  std::string error;
  size_t error_at = 0;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_float(double value, const std::string&) override {
    return aside_ == Aside::kSum ? add(value) : put(value);
  }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(json::binary_t&) override { return refuse("binary data"); }

  bool number_integer(int64_t value) override {
    if (aside_ == Aside::kNone) return put(value);
    if (aside_ == Aside::kSum) return add(static_cast<double>(value));
    return refuse(fmt::format("{} in \"{}\"", value, key_));
  }

  bool number_unsigned(uint64_t value) override {
    switch (aside_) {
      case Aside::kNone:
        return put(value);
      case Aside::kRuns:
        if (value > static_cast<uint64_t>(kBlockIdMax)) {
          return refuse(fmt::format("block id {} in \"{}\"; ids are below 2^61", value, key_));
        }
        {
          IdRuns& runs = result.runs.back();
          const size_t before = runs.size();
          append_id(&runs, static_cast<int64_t>(value), v1::SCOPE_NONE);
          return runs.size() == before || counted();
        }
      case Aside::kNumbers:
        if (value > UINT32_MAX) return refuse(fmt::format("token id {} in \"{}\"", value, key_));
        result.numbers.back().push_back(static_cast<uint32_t>(value));
        return counted();
      case Aside::kSum:
        return add(static_cast<double>(value));
    }
    return false;
  }

  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool end_array() override {
    if (aside_ == Aside::kNone) return close();
    const bool summed = std::exchange(aside_, Aside::kNone) == Aside::kSum;
    return !summed || put(sum_);
  }

  bool start_array(size_t) override {
    if (aside_ != Aside::kNone) return refuse(fmt::format("a list inside \"{}\"", key_));
    if (is_run_key()) {
      if (!put_index(result.runs.size())) return false;
      result.runs.emplace_back();
      aside_ = Aside::kRuns;
      return true;
    }
    if (is_number_key()) {
      if (!put_index(result.numbers.size())) return false;
      result.numbers.emplace_back();
      aside_ = Aside::kNumbers;
      return true;
    }
    if (sums_at_ != 0 && open_.size() == sums_at_) {
      aside_ = Aside::kSum;
      sum_ = 0;
      return true;
    }
    if (!open(json::array())) return false;
    const bool sums = !keys_.sum_key.empty() && key_ == keys_.sum_key && open_.size() > 1;
    if (sums && open_[open_.size() - 2]->is_object()) sums_at_ = open_.size();
    return true;
  }

  bool key(std::string& value) override {
    key_ = std::move(value);
    return counted();
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    // nlohmann's text starts with its error number and place; the reason follows the last colon.
    const std::string_view text = exception.what();
    const size_t at = text.find(": ");
    error = at == std::string_view::npos ? text : text.substr(at + 2);
    error_at = position;
    return false;
  }

 private:
  enum class Aside { kNone, kRuns, kNumbers, kSum };

  bool add(double value) {
    sum_ += value;
    return true;
  }

  bool refuse(std::string what) {
    error = std::move(what);
    return false;
  }
  bool in_object() const { return !open_.empty() && open_.back()->is_object(); }
  bool is_run_key() const { return in_object() && !keys_.run_key.empty() && key_ == keys_.run_key; }
  bool is_number_key() const {
    return in_object() && !keys_.number_suffix.empty() && key_.ends_with(keys_.number_suffix);
  }
  bool counted() {
    if (++values_ <= kJsonValuesMax) return true;
    return refuse(fmt::format("more than {} values", kJsonValuesMax));
  }

  json* place(json&& value) {
    if (open_.empty()) return &(result.tree = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  template <typename T>
  bool put(T&& value) {
    if (aside_ != Aside::kNone) return refuse(fmt::format("something other than a number in \"{}\"", key_));
    // The tree holds an index in place of such a list, so a number in the file would be taken for an index.
    if (!std::is_same_v<T, std::nullptr_t> && (is_run_key() || is_number_key())) {
      return refuse(fmt::format("\"{}\" is no list", key_));
    }
    if (!counted()) return false;
    place(json(std::forward<T>(value)));
    return true;
  }

  bool put_index(size_t index) {
    if (!counted()) return false;
    place(json(index));
    return true;
  }

  bool open(json&& empty) {
    if (aside_ != Aside::kNone) return refuse(fmt::format("an object inside \"{}\"", key_));
    if (open_.size() == kNestingMax) return refuse(fmt::format("nesting deeper than {}", kNestingMax));
    if (!counted()) return false;
    open_.push_back(place(std::move(empty)));
    return true;
  }

  bool close() {
    if (open_.size() == sums_at_) sums_at_ = 0;
    open_.pop_back();
    return true;
  }

  const CompactKeys keys_;
  std::vector<json*> open_;  // valid while open: a parent does not change until its child is closed
  std::string key_;
  Aside aside_ = Aside::kNone;
  uint64_t values_ = 0;
  double sum_ = 0;
  size_t sums_at_ = 0;  // depth of the open list under `sum_key`; 0: none is open
};

}  // namespace

Result<CompactJson> parse_compact_json(std::string_view text, const CompactKeys& keys) {
  Builder builder(keys);
  try {
    if (json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.result);
  } catch (const std::exception& exception) {
    builder.error = exception.what();
  }
  const std::string where = builder.error_at == 0 ? "" : fmt::format("byte {}", builder.error_at);
  return make_error(where, builder.error, "JSON as the format describes it");
}

}  // namespace kvtwin
