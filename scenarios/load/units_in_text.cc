#include "scenarios/load/units_in_text.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "scenarios/load/field_values.h"

namespace kvtwin {
namespace {

namespace pb = google::protobuf;

constexpr std::string_view kEnds = " \t\r\n,;:[]{}<>#\"'";

}  // namespace

// Reads a textproto as far as needed to know the field of each value. Text that is no textproto passes
// unchanged: the parser reports it.
class UnitScanner {
 public:
  UnitScanner(std::string_view in, const pb::Descriptor* type, PlainText* out)
      : in_(in), out_(*out), open_{{type, nullptr}} {}

  void scan() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '#') {
        copy(in_.find('\n', at_));
      } else if (c == '"' || c == '\'') {
        value(string_end());
      } else if (kEnds.find(c) != std::string_view::npos) {
        punctuation(c);
        copy(at_ + 1);
      } else if (value_) {
        value(in_.find_first_of(kEnds, at_));
      } else {
        name(in_.find_first_of(kEnds, at_));
      }
    }
  }

 private:
  struct Open {
    const pb::Descriptor* type;        // nullptr: unknown
    const pb::FieldDescriptor* field;  // that the message is a value of
  };

  void punctuation(char c) {
    if (c == ':') value_ = true;
    if (c == '[') list_ = value_;
    if (c == ']') value_ = list_ = false;
    if (c == '{' || c == '<') {
      const bool group = field_ != nullptr && field_->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE;
      open_.push_back({group ? field_->message_type() : nullptr, field_});
      value_ = list_ = false;
    }
    if ((c == '}' || c == '>') && open_.size() > 1) {
      field_ = open_.back().field;
      open_.pop_back();
      value_ = list_ = false;
    }
  }

  void name(size_t end) {
    const std::string word(in_.substr(at_, std::min(end, in_.size()) - at_));
    field_ = open_.back().type != nullptr ? open_.back().type->FindFieldByName(word) : nullptr;
    name_line_ = line_;
    name_column_ = static_cast<int>(at_ - line_begin_);
    copy(end);
  }

  void value(size_t end) {
    end = std::min(end, in_.size());
    std::string_view word = in_.substr(at_, end - at_);
    if (word.size() >= 2 && (word.front() == '"' || word.front() == '\'') && word.back() == word.front())
      word = word.substr(1, word.size() - 2);
    if (value_ && field_ != nullptr && takes_unit(field_)) {
      const Result<std::string> plain = plain_value(field_, word);
      if (!plain || *plain != word) {
        if (!plain)
          out_.errors_.push_back(
              {name_line_,
               name_column_,
               {"",
                fmt::format("\"{}\" is not a value of {}: it {}", word, field_->name(), plain.error().what),
                fmt::format("it takes {}", kind_of(field_))}});
        const std::string text = plain ? *plain : "0";
        const auto from = static_cast<int>(out_.text_.size() - out_begin_);
        out_.edits_.push_back({line_, from, static_cast<int>(text.size()) - static_cast<int>(end - at_)});
        out_.text_ += text;
        at_ = end;
      }
    }
    copy(end);
    if (!list_) value_ = false;
  }

  size_t string_end() const {
    for (size_t end = at_ + 1; end < in_.size() && in_[end] != '\n'; ++end) {
      if (in_[end] == '\\') {
        ++end;
      } else if (in_[end] == in_[at_]) {
        return end + 1;
      }
    }
    return std::min(in_.find('\n', at_), in_.size());
  }

  void copy(size_t end) {
    for (end = std::min(end, in_.size()); at_ < end; ++at_) {
      out_.text_ += in_[at_];
      if (in_[at_] != '\n') continue;
      ++line_;
      line_begin_ = at_ + 1;
      out_begin_ = out_.text_.size();
    }
  }

  const std::string_view in_;
  PlainText& out_;
  std::vector<Open> open_;
  const pb::FieldDescriptor* field_ = nullptr;
  bool value_ = false, list_ = false;  // a value follows; inside [...]
  size_t at_ = 0, line_begin_ = 0, out_begin_ = 0;
  int line_ = 0, name_line_ = 0, name_column_ = 0;
};

PlainText::PlainText(std::string_view text, const pb::Descriptor* type) {
  text_.reserve(text.size());
  UnitScanner(text, type, this).scan();
}

int PlainText::original_column(int line, int column) const {
  int out = column;
  for (const Edit& edit : edits_) {
    if (edit.line == line && edit.column < column) out -= edit.longer;
  }
  return out;
}

}  // namespace kvtwin
