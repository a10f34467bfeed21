#include "tests/unit/models/profile_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "models/cost_tables/cost_tables.h"

namespace kvtwin {

double dense_us(size_t layer, double tokens) { return 1 + static_cast<double>(layer) + 0.01 * tokens; }
double head_us(double rows) { return 100 + rows; }
double pure_us(double decodes, double context) { return 4 + 0.001 * decodes * context; }
double pure_unsplit_us(double decodes, double context) { return 20 + 0.0005 * decodes * context; }
double prefill_us(double chunk, double context) { return 3 + 0.1 * chunk + 0.0001 * chunk * context; }
double mixed_us(double chunk, double chunk_context, double decodes, double context) {
  return prefill_us(chunk, chunk_context) + 1 + 0.002 * decodes * context;
}

ProfileFiles::ProfileFiles() {
  static int count = 0;
  dir_ = (std::filesystem::temp_directory_path() / fmt::format("kvtwin_profile_{}_{}", ::getpid(), ++count))
             .string();
  std::filesystem::create_directories(dir_ + "/tp1");
  write("meta.yaml", "gpu: Test\nmodel: tiny\ntp_degrees: [1]\nattention_grid:\n  chunks: 0, 16-64 x2\n");
  std::string dense = "layer,tokens,time_us\n", head = "layer,sequences,time_us\n";
  for (size_t i = 0; i < kDenseOps; ++i) {
    for (const uint32_t t : {1u, 8u, 64u, 256u}) {
      dense += fmt::format("{},{},{}\n", name_of(static_cast<DenseOp>(i)), t, dense_us(i, t));
    }
  }
  for (const char* layer : {"lm_head", "sampler"}) {
    for (const uint32_t rows : {1u, 32u}) head += fmt::format("{},{},{}\n", layer, rows, head_us(rows));
  }
  std::string attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n";
  const uint32_t contexts[] = {16, 64, 256, 1024};
  for (const uint32_t n : {1u, 2u, 4u, 8u, 16u, 32u}) {
    for (const uint32_t d : contexts) {
      attention += fmt::format("0,0,{},{},{}\n", n, d, n <= 8 ? pure_us(n, d) : pure_unsplit_us(n, d));
    }
  }
  for (const uint32_t c : {16u, 32u, 64u}) {
    for (const uint32_t k : {0u, 16u, 64u, 256u, 1024u}) {
      attention += fmt::format("{},{},0,0,{}\n", c, k, prefill_us(c, k));
      for (const uint32_t n : {1u, 2u, 4u, 8u, 16u}) {  // 32 decodes were measured without chunks only
        for (const uint32_t d : contexts)
          attention += fmt::format("{},{},{},{},{}\n", c, k, n, d, mixed_us(c, k, n, d));
      }
    }
  }
  write("tp1/dense.csv", dense);
  write("tp1/per_sequence.csv", head);
  write("tp1/attention.csv", attention);
  // Equal contexts take 100 us, contexts all at the longest take 300; the real batch takes 100 + 200 alpha.
  std::string skew = "regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha\n";
  const auto row = [&skew](const char* regime, uint32_t n, uint32_t chunk, uint32_t longest, double alpha) {
    skew += fmt::format("{},{},1,0.5,4.0,{},0,512,{},1280,100,300,{},\n", regime, n, chunk, longest,
                        100 + 200 * alpha);
  };
  row("pure", 2, 0, 2048, 0.4);
  row("pure", 8, 0, 2048, 0.1);
  row("pure", 8, 0, 8192, 0.9);  // longer than the fit accepts
  row("pure", 16, 0, 2048, 0.5);
  row("pure", 32, 0, 2048, 0.5);
  for (const uint32_t c : {16u, 32u, 64u}) {
    for (const uint32_t n : {2u, 8u}) row("mixed", n, c, 2048, 0.25);
  }
  write("tp1/skew.csv", skew);
}

ProfileFiles::~ProfileFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

void ProfileFiles::write(const std::string& name, const std::string& text) const {
  std::ofstream(dir_ + "/" + name, std::ios::binary) << text;
}

std::string ProfileFiles::read(const std::string& name) const {
  std::ostringstream text;
  text << std::ifstream(dir_ + "/" + name, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace kvtwin
