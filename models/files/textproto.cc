#include "models/files/textproto.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>

#include "engine/base/compressed_file.h"
#include "engine/base/regular_file.h"
#include "engine/base/retired_names.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;
constexpr size_t kErrorsMax = 20;  // per file; a binary file would otherwise fill the screen

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// Whether `word` is `known` with a suffix: "h100-80gb" extends "h100".
bool extends(std::string_view word, std::string_view known) {
  if (known.size() < 3 || word.size() <= known.size() || !word.starts_with(known)) return false;
  const char next = word[known.size()];
  return next == '-' || next == '_' || next == '.' || next == ' ';
}

class Errors : public pb::io::ErrorCollector {
 public:
  Errors(std::string where, const pb::Descriptor* root) : where_(std::move(where)), root_(root) {}

  void AddError(int line, pb::io::ColumnNumber column, const std::string& what) override {
    if (++count_ > kErrorsMax) return;
    std::string place = line < 0 ? where_ : fmt::format("{}:{}:{}", where_, line + 1, column + 1);
    if (first_.empty()) {
      first_ = place;
      text_ = what;
      hint_ = suggestion(what);
    } else {
      text_ += fmt::format("\n{}: {}", place, what);
    }
  }
  void AddWarning(int, pb::io::ColumnNumber, const std::string&) override {}

  Result<void> result() const {
    if (count_ == 0) return {};
    std::string what = text_;
    if (count_ > kErrorsMax) what += fmt::format("\n... and {} more", count_ - kErrorsMax);
    return make_error(first_, what, hint_);
  }

 private:
  // protobuf's message is: Message type "kvtwin.v1.LlmSpec" has no field named "layer".
  std::string suggestion(const std::string& what) const {
    const size_t type_at = what.find("Message type \""), field_at = what.find("has no field named \"");
    if (type_at == std::string::npos || field_at == std::string::npos) return {};
    const auto quoted = [&](size_t from) {
      const size_t begin = what.find('"', from) + 1;
      return what.substr(begin, what.find('"', begin) - begin);
    };
    const pb::Descriptor* type = root_->file()->pool()->FindMessageTypeByName(quoted(type_at));
    if (type == nullptr) return {};
    std::vector<std::string> fields;
    for (int i = 0; i < type->field_count(); ++i) fields.push_back(type->field(i)->name());
    return did_you_mean(quoted(field_at), fields);
  }

  std::string where_, first_, text_, hint_;
  const pb::Descriptor* root_;
  size_t count_ = 0;
};

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t bytes_max) {
  if (Result<void> ok = check_regular_file(path); !ok) return tl::unexpected<Error>(ok.error());
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(path, "cannot be opened", "check the name and its permissions");
  std::string text;
  char buffer[1 << 14];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    if (text.empty()) {
      const std::string_view start(buffer, static_cast<size_t>(in.gcount()));
      if (Result<void> ok = check_not_compressed(path, start); !ok) return tl::unexpected<Error>(ok.error());
    }
    text.append(buffer, static_cast<size_t>(in.gcount()));
    if (text.size() > bytes_max) {
      return make_error(path, fmt::format("is larger than {} bytes", bytes_max),
                        "this kind of file is small");
    }
  }
  if (in.bad()) return make_error(path, "cannot be read", "is it a directory?");
  return text;
}

size_t first_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || at + length > text.size()) return at;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return at;
    }
    at += length;
  }
  return std::string_view::npos;
}

Result<void> parse_textproto(std::string_view text, const std::string& where, pb::Message* message) {
  if (text.size() > kModelFileBytesMax) return make_error(where, "is too large for a textproto");
  if (first_bad_utf8(text) != std::string_view::npos)
    return make_error(where, "has a character that is not UTF-8", "save the file as UTF-8");
  Errors errors(where, message->GetDescriptor());
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(32);
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  const bool parsed = parser.Parse(&stream, message);
  if (auto r = errors.result(); !r) return r;
  if (!parsed) return make_error(where, "is not a textproto");
  return {};
}

std::string place_of_field(std::string_view text, const std::string& where, const pb::Message& message,
                           const std::string& field) {
  const pb::FieldDescriptor* descriptor = message.GetDescriptor()->FindFieldByName(field);
  if (descriptor == nullptr || text.size() > kModelFileBytesMax) return where;
  pb::TextFormat::ParseInfoTree places;
  pb::TextFormat::Parser parser;
  Errors ignored(where, message.GetDescriptor());
  parser.RecordErrorsTo(&ignored);
  parser.WriteLocationsTo(&places);
  parser.SetRecursionLimit(32);
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  const std::unique_ptr<pb::Message> scratch(message.New());
  if (!parser.Parse(&stream, scratch.get())) return where;
  const pb::TextFormat::ParseLocation at = places.GetLocation(descriptor, descriptor->is_repeated() ? 0 : -1);
  return at.line < 0 ? where : fmt::format("{}:{}:{}", where, at.line + 1, at.column + 1);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  std::vector<std::pair<size_t, std::string>> near;
  if (word.size() > 200) return {};
  if (const std::string_view now = name_now(word, known); !now.empty())
    return fmt::format("it is called \"{}\" now", now);
  for (const std::string& name : known) {
    const std::string known_lower = lower(name), word_lower = lower(word);
    const size_t distance = edit_distance(word_lower, known_lower);
    const bool inside = word.size() >= 3 && known_lower.find(word_lower) != std::string::npos;
    const bool extended = extends(word_lower, known_lower);
    if (inside || extended || distance <= std::max<size_t>(2, name.size() / 3))
      near.emplace_back(inside || extended ? 0 : distance, name);
  }
  std::sort(near.begin(), near.end());
  std::string text;
  for (size_t i = 0; i < near.size() && i < 3; ++i) {
    text += (i == 0 ? "did you mean \"" : " or \"") + near[i].second + "\"";
  }
  return text.empty() ? text : text + "?";
}

std::string textproto_text(const pb::Message& message) {
  pb::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

std::string textproto_file(const pb::Message& message) {
  const pb::Descriptor& type = *message.GetDescriptor();
  return fmt::format("# proto-file: {}\n# proto-message: {}\n", type.file()->name(), type.full_name()) +
         textproto_text(message);
}

std::string textproto_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace kvtwin
