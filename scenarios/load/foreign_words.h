// Words of vLLM, SGLang and TensorRT-LLM for the fields of a scenario, for error messages and
// `kvtwin list words`.

#ifndef KVTWIN_SCENARIOS_LOAD_FOREIGN_WORDS_H_
#define KVTWIN_SCENARIOS_LOAD_FOREIGN_WORDS_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

struct ForeignWord {
  std::string engines;  // that have the word
  std::string word;     // as in --max-num-seqs, with underscores
  std::string ours;     // field, or field=value; "": kvtwin has none
  std::string note;     // how it differs; may be empty
};

const std::vector<ForeignWord>& foreign_words();

// The row of `word`, which may have dashes, leading dashes and capitals; nullptr: no engine's word is known.
const ForeignWord* foreign_word(std::string_view word);

// A hint for a user who wrote `word`: `vLLM's max_num_seqs is limits.requests_max here`. "" if unknown.
std::string foreign_hint(std::string_view word);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_FOREIGN_WORDS_H_
