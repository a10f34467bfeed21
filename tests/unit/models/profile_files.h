// A small LLMServingSim profile whose times follow closed forms, written to a temporary folder.

#ifndef KVTWIN_TESTS_UNIT_MODELS_PROFILE_FILES_H_
#define KVTWIN_TESTS_UNIT_MODELS_PROFILE_FILES_H_

#include <cstdint>
#include <string>

namespace kvtwin {

// The closed forms, in us. Each is linear in each argument, so interpolation must reproduce them.
double dense_us(size_t layer, double tokens);  // layer: index of DenseOp
double head_us(double rows);
double pure_us(double decodes, double context);          // up to 8 decodes
double pure_unsplit_us(double decodes, double context);  // from 16 decodes on
double prefill_us(double chunk, double context);
double mixed_us(double chunk, double chunk_context, double decodes, double context);

class ProfileFiles {
 public:
  ProfileFiles();
  ~ProfileFiles();
  const std::string& dir() const { return dir_; }
  void write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;

 private:
  std::string dir_;
};

}  // namespace kvtwin

#endif  // KVTWIN_TESTS_UNIT_MODELS_PROFILE_FILES_H_
