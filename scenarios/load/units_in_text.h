// Units in a scenario's text: `host_bytes: 500GB` or `host_bytes: "500GB"`. The textproto parser knows plain
// numbers only, so units are replaced before it reads the text.

#ifndef KVTWIN_SCENARIOS_LOAD_UNITS_IN_TEXT_H_
#define KVTWIN_SCENARIOS_LOAD_UNITS_IN_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace google::protobuf {
class Descriptor;
}

namespace kvtwin {

class PlainText {
 public:
  // Replaces the units of numeric fields in `text`, a textproto of `type`. Where a unit is wrong, the value
  // becomes 0 and `errors()` names it.
  PlainText(std::string_view text, const google::protobuf::Descriptor* type);

  const std::string& text() const { return text_; }
  // A column of text() as the column of the original text; both from 0.
  int original_column(int line, int column) const;

  struct BadUnit {
    int line, column;  // of the field's name, from 0
    Error error;       // without a place
  };
  const std::vector<BadUnit>& errors() const { return errors_; }

 private:
  friend class UnitScanner;
  struct Edit {
    int line, column;  // in text(), from 0
    int longer;        // characters that the replacement is longer
  };

  std::string text_;
  std::vector<Edit> edits_;
  std::vector<BadUnit> errors_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_UNITS_IN_TEXT_H_
