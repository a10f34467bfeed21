// Vidur's two files, made by hand in its format (tests/fuzz/vidur_fuzz/small). The times follow closed
// forms, so the expected tables are known. Operation i of mlp.csv takes (i + 1) + 0.1 tokens / workers us.

#include "models/cost_tables/import_vidur.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"
#include "models/cost_tables/attention_table.h"
#include "models/cost_tables/cost_factory.h"
#include "models/cost_tables/cost_tables.h"
#include "models/files/textproto.h"
#include "tests/support/folder.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

LlmSpec four_heads() {
  LlmSpec llm;
  llm.name = "four heads";
  llm.layers = 2, llm.query_heads = 4, llm.kv_heads = 2, llm.head_dim = 16, llm.hidden = 64;
  llm.intermediate = 256, llm.vocab = 1000, llm.context_window = 4096;
  return llm;
}

struct Files {
  NamedText mlp{"mlp.csv", {}}, attention{"attention.csv", {}};
  Files() {
    const auto text = read_text_file(testing::source_dir() + "/tests/fuzz/vidur_fuzz/small");
    REQUIRE(text);
    const size_t cut = text->find("\n\n");
    mlp.text = text->substr(0, cut);
    attention.text = text->substr(cut + 2);
  }
  Result<ProfileFolder> make(const LlmSpec& llm = four_heads()) const {
    return import_vidur(mlp, attention, llm, "A40");
  }
  std::string complaint(const LlmSpec& llm = four_heads()) const {
    const auto made = make(llm);
    return made ? "" : made.error().text();
  }
};

void replace(std::string* text, const std::string& from, const std::string& to) {
  const size_t at = text->find(from);
  REQUIRE(at != std::string::npos);
  text->replace(at, from.size(), to);
}

bool message(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Writes the folder to disk and loads it.
Result<CostTables> loaded(const testing::Folder& folder, const ProfileFolder& files) {
  for (const auto& [name, bytes] : files) {
    folder.write(name, bytes);
  }
  return load_cost_tables(folder.path(), 1);
}

}  // namespace

TEST_CASE("vidur: medians in ms become tables in us; rows of another model and unknown degrees are skipped") {
  const auto made = Files().make();
  REQUIRE_MESSAGE(made, (made ? std::string() : made.error().text()));
  CHECK(made->size() == 3);  // tp1's two tables and meta.yaml; attention.csv has no rows of two workers
  const testing::Folder folder;
  const auto tables = loaded(folder, *made);
  REQUIRE_MESSAGE(tables, (tables ? std::string() : tables.error().text()));
  CHECK(tables->gpu == "A40");
  const auto at = [&](DenseOp op) { return tables->dense[static_cast<size_t>(op)]; };
  CHECK(at(DenseOp::kEmbedding).at == std::vector<uint32_t>{1, 64, 1024});
  CHECK(at(DenseOp::kEmbedding).us[1] == doctest::Approx(1 + 6.4));
  CHECK(at(DenseOp::kQkv).us[2] == doctest::Approx(3 + 102.4));
  CHECK(at(DenseOp::kDown).us[0] == doctest::Approx(9 + 0.1));
  // A norm and the addition before it.
  CHECK(at(DenseOp::kLayernorm).us[1] == doctest::Approx((2 + 6.4) + (10 + 6.4)));
  CHECK(tables->lm_head.at.empty());
  CHECK(tables->attention.decodes == std::vector<uint32_t>{1, 8});
  CHECK(tables->attention.pure[1].us[1] == doctest::Approx(80 + 10.24 + 1 + 2));
  CHECK(tables->attention.chunk == std::vector<uint32_t>{64, 512});
  CHECK(tables->attention.prefill[1].us[1] == doctest::Approx(512 + 10.24 + 1 + 2));
  CHECK(tables->attention.mixed.empty());
  CHECK(tables->query_heads == 4);
}

TEST_CASE("vidur: decodes with a chunk take the sum of both alone, and the head comes from the roofline") {
  const testing::Folder folder;
  const auto tables = loaded(folder, *Files().make());
  REQUIRE(tables);
  AttentionTable attention(*tables, 2, 0);
  StepShape shape;
  shape.decodes = 8;
  shape.decode_context_sum = 8 * 1024;
  shape.decode_context_max = 1024;
  const double decodes = attention.step(shape).us;
  const std::vector<ChunkShape> chunks{{64, 0}};
  shape.chunks = chunks;
  CHECK(attention.step(shape).us == doctest::Approx(decodes + 64 + 3));
  shape.decodes = 0;
  CHECK(attention.step(shape).us == doctest::Approx(64 + 3));

  CostModelSpec spec;
  spec.llm = four_heads();
  spec.device = *Catalog().device("h100");
  spec.tp = 1;
  spec.profile = folder.path();
  const auto model = make_cost_model(spec);
  REQUIRE_MESSAGE(model, (model ? std::string() : model.error().text()));
  shape.tokens = shape.tokens_padded = 64;
  shape.logits_rows = 1;
  size_t heads = 0;
  for (const StepPart& part : (*model)->ops(shape)) {
    const bool head = part.kind == PartKind::kLmHead || part.kind == PartKind::kSample;
    heads += head ? 1 : 0;
    CHECK((part.evidence == Evidence::kRoofline) == head);
  }
  CHECK(heads == 2);
}

TEST_CASE("vidur: operations that no price reads are named") {
  Files files;
  std::string wider;
  for (size_t from = 0; from < files.mlp.text.size();) {
    const size_t end = std::min(files.mlp.text.find('\n', from), files.mlp.text.size());
    const std::string line = files.mlp.text.substr(from, end - from);
    if (!line.empty()) wider += line + (from == 0 ? ",time_stats.router.median" : ",0.5") + "\n";
    from = end + 1;
  }
  const testing::Folder folder;
  const auto plain = loaded(folder, *files.make());
  REQUIRE(plain);
  CHECK(plain->unread.empty());
  files.mlp.text = wider;
  ProfileFolder made = *files.make();
  for (auto& [name, bytes] : made)
    if (name == "tp1/dense.csv") bytes += "fused_moe,16,3.5\nfused_moe,32,4\n";
  const auto tables = loaded(folder, made);
  REQUIRE_MESSAGE(tables, (tables ? std::string() : tables.error().text()));
  CHECK(tables->unread == std::vector<std::string>{"mlp.csv: router", "fused_moe"});

  std::vector<std::string> notes;
  CostModelSpec spec;
  spec.llm = four_heads(), spec.device = *Catalog().device("h100");
  spec.profile = folder.path();
  REQUIRE(make_cost_model(spec, &notes));
  REQUIRE(notes.size() == 1);
  CHECK(message(notes.front(), "has times of mlp.csv: router, fused_moe, which no price reads"));
}

TEST_CASE("vidur: an error is reported with its place") {
  CHECK(Files().complaint() == "");
  Files files;
  replace(&files.mlp.text, "time_stats.mlp_act.median", "time_stats.mlp_act.middle");
  CHECK(message(files.complaint(), "mlp.csv:1: there is no column \"time_stats.mlp_act.median\""));
  files = Files();
  replace(&files.attention.text, "is_prefill", "prefilled");
  CHECK(message(files.complaint(), "attention.csv:1"));
  files = Files();
  replace(&files.attention.text, ",True,", ",Yes,");
  CHECK(message(files.complaint(), "True or False is right"));
  files = Files();
  replace(&files.mlp.text, ",True,1024,1", ",True,10x4,1");
  CHECK(message(files.complaint(), "mlp.csv:2"));
  files = Files();
  files.mlp.text.clear();
  CHECK(message(files.complaint(), "mlp.csv"));
  LlmSpec other = four_heads();
  other.hidden = 65;
  CHECK(message(Files().complaint(other), "has no row of four heads"));
  CHECK(message(Files().complaint(other), "n_embd 64"));
  other = four_heads();
  other.moe.experts = 8;
  CHECK(message(Files().complaint(other), "no experts"));
}

TEST_CASE("cost_tables: optional parts must be declared absent by name") {
  const testing::Folder folder;
  auto made = Files().make();
  REQUIRE(made);
  replace(&made->back().second, "output_head, mixed", "mixed");
  CHECK(message(loaded(folder, *made).error().text(), "per_sequence.csv"));
  replace(&made->back().second, "[mixed]", "[output_head]");
  CHECK(message(loaded(folder, *made).error().text(), "beside every prefill chunk"));
  replace(&made->back().second, "[output_head]", "[all]");
  CHECK(message(loaded(folder, *made).error().text(), "not_measured names \"all\""));
}

}  // namespace kvtwin
