#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "engine/base/plural.h"
#include "models/catalog/catalog.h"
#include "models/catalog/hf_config.h"
#include "models/files/textproto.h"
#include "models/profiles/retention_table.h"
#include "models/weights/weights.h"
#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

int write_out(const std::string& path, const std::string& text) {
  const Result<void> ok = write_text(path, text);
  return ok ? kExitDone : complain(ok.error(), kExitEnvironment);
}

struct ModelImport {
  std::string config, name, source, as, out;
};

// "Qwen--Qwen3-32B.config.json" and "Qwen3-32B/config.json" are of qwen3-32b.
std::string name_of_config(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path file = fs::absolute(path).lexically_normal();
  std::string name = file.stem().string();
  if (name.ends_with(".config")) name.resize(name.size() - std::string_view(".config").size());
  if (name == "config") name = file.parent_path().filename().string();
  if (const size_t owner = name.find("--"); owner != std::string::npos) name = name.substr(owner + 2);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

int run_import(ModelImport options) {
  if (options.name.empty()) options.name = name_of_config(options.config);
  if (Result<void> ok = check_catalog_name(options.name, "--name"); !ok) return complain(ok.error());
  const Result<std::string> json = read_text_file(options.config, size_t{1} << 20);
  if (!json) return complain(json.error());
  Result<LlmSpec> llm = import_hf_config(*json, options.config, options.as);
  if (!llm) return complain(llm.error());
  if (!options.as.empty() && llm->family != options.as) {
    fmt::print(
        stderr,
        "{}: warning: model_type \"{}\" is read by the rules of {}: compare parameters and KV bytes with the "
        "model's own (kvtwin model show)\n",
        options.config, llm->family, options.as);
  }
  llm->name = options.name;
  llm->source = options.source.empty() ? options.config : options.source;
  const std::string text = llm_textproto(*llm);
  if (options.out.empty()) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  return write_out(options.out, text);
}

struct ModelProfile {
  std::string npz, name, out;
  double alpha = 2;
  uint32_t group = 4;
};

int run_import_profile(const ModelProfile& options) {
  if (!(options.alpha >= 0 && options.alpha <= 100))
    return complain(Error{"--alpha", fmt::format("is {}", options.alpha), "0 to 100"});
  if (options.group == 0) return complain(Error{"--group", "is 0", "1 or more heads"});
  Result<RetentionProfile> profile = import_retention_npz_file(options.npz);
  if (!profile) return complain(profile.error());
  if (!options.name.empty()) profile->name = options.name;
  const std::string text = retention_textproto(*profile, options.alpha);
  if (options.out.empty()) {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  fmt::print("{}", retention_table(*profile, options.alpha, options.group));
  return write_out(options.out, text);
}

struct ShowOptions {
  std::string name;
  uint32_t tp = 1;
};

void show(const LlmSpec& m, uint32_t tp) {
  const WeightBytes w = weight_bytes(m, tp);
  const auto gb = [](double bytes) { return bytes / 1e9; };
  fmt::print("{}  ({}, {})\n\n", m.name, m.family, m.source);
  fmt::print("  layers               {:>10}\n", m.layers);
  fmt::print("  heads                {:>10}   {} KV, {} wide{}\n", m.query_heads, m.kv_heads, m.head_dim,
             m.qk_norm ? ", q/k norm" : "");
  fmt::print("  hidden               {:>10}\n", m.hidden);
  if (m.dense_layers() > 0)
    fmt::print("  MLP                  {:>10}   in {} layers\n", m.intermediate, m.dense_layers());
  if (m.moe_layers() > 0) {
    fmt::print("  experts              {:>10}   {} active, {} wide, in {} layers\n", m.moe.experts,
               m.moe.active, m.moe.intermediate, m.moe_layers());
    if (m.moe.shared > 0)
      fmt::print("  shared experts       {:>10}   {} wide\n", m.moe.shared, m.moe.shared_intermediate);
  }
  if (m.window > 0)
    fmt::print("  sliding window       {:>10}   in {} layers\n", m.window, m.sliding_layers.size());
  fmt::print("  vocabulary           {:>10}{}\n", m.vocab, m.tied_embeddings ? "   tied" : "");
  fmt::print("  context window       {:>10}   rope theta {:g}{}{}\n", m.context_window, m.rope.theta,
             m.rope.scaling.empty() ? "" : ", ", m.rope.scaling);
  fmt::print("  parameters           {:>10.3f} B", static_cast<double>(m.parameters()) / 1e9);
  if (m.moe.experts > 0) fmt::print(" {:.3f} B active", static_cast<double>(m.active_parameters()) / 1e9);
  const Result<void> computed = check_dense(m, m.name);
  fmt::print("\n  backends             {}", computed ? "sim, cpu, cuda" : "sim: " + computed.error().what);
  fmt::print("\n\non each of {} {}\n", tp, plural(tp, "GPU"));
  fmt::print("  KV per token         {:>10} bytes   {}\n", m.kv_bytes_per_token(tp), name_of(m.kv.dtype));
  fmt::print("  weights              {:>10.3f} GB   {}\n", gb(w.total()), name_of(m.weights.dtype));
  fmt::print("    attention          {:>10.3f} GB\n", gb(w.attention));
  if (w.mlp > 0) fmt::print("    MLP                {:>10.3f} GB\n", gb(w.mlp));
  if (w.experts > 0)
    fmt::print("    experts            {:>10.3f} GB   {}\n", gb(w.experts), name_of(m.expert_weights.dtype));
  fmt::print("    embedding          {:>10.3f} GB   bf16\n", gb(w.embedding));
  if (w.lm_head > 0) fmt::print("    output head        {:>10.3f} GB   bf16\n", gb(w.lm_head));
  fmt::print("    norms, biases      {:>10.3f} GB   bf16\n", gb(w.replicated));
}

int run_show(const ShowOptions& options) {
  const Result<LlmSpec> llm = Catalog().llm(options.name);
  if (!llm) return complain(llm.error());
  if (auto r = check_tp(*llm, options.tp, "--tp"); !r) return complain(r.error());
  show(*llm, options.tp);
  return 0;
}

struct InitOptions {
  std::string model, out;
  uint64_t seed = 42;
};

// `model` is a config.json or a name that the catalog takes.
Result<LlmSpec> read_model(const std::string& model) {
  if (!model.ends_with(".json")) return Catalog().llm(model);
  const Result<std::string> json = read_text_file(model, size_t{1} << 20);
  if (!json) return tl::unexpected<Error>(json.error());
  return import_hf_config(*json, model);
}

int run_init(const InitOptions& options) {
  const Result<LlmSpec> llm = read_model(options.model);
  if (!llm) return complain(llm.error());
  if (Result<void> ok = check_dense(*llm, options.model); !ok) return complain(ok.error());
  const ModelWeights weights = ModelWeights::random(*llm, options.seed);
  if (Result<void> ok = write_model(weights, options.out); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print("{}: {} parameters in bf16, drawn from seed {}\n", options.out, llm->parameters(), options.seed);
  return 0;
}

}  // namespace

void add_model_command(CLI::App& app, int* status) {
  CLI::App* model = app.add_subcommand("model");
  model->require_subcommand(1);

  auto import = std::make_shared<ModelImport>();
  CLI::App* cmd = model->add_subcommand("import");
  cmd->add_option("config", import->config)->required();
  cmd->add_option("--name", import->name);
  cmd->add_option("--as", import->as);
  cmd->add_option("--source", import->source);
  cmd->add_option("--out", import->out);
  cmd->callback([import, status] { *status = run_import(*import); });

  auto profile = std::make_shared<ModelProfile>();
  cmd = model->add_subcommand("import-profile");
  cmd->add_option("npz", profile->npz)->required();
  cmd->add_option("--alpha", profile->alpha);
  cmd->add_option("--name", profile->name);
  cmd->add_option("--group", profile->group);
  cmd->add_option("--out", profile->out);
  cmd->callback([profile, status] { *status = run_import_profile(*profile); });
  auto init = std::make_shared<InitOptions>();
  cmd = model->add_subcommand("init");
  cmd->add_option("config", init->model)->required();
  cmd->add_option("--seed", init->seed);
  cmd->add_option("--out", init->out)->required();
  cmd->callback([init, status] { *status = run_init(*init); });

  auto options = std::make_shared<ShowOptions>();
  cmd = model->add_subcommand("show");
  cmd->add_option("name", options->name)->required();
  cmd->add_option("--tp", options->tp);
  cmd->callback([options, status] { *status = run_show(*options); });
}

}  // namespace kvtwin
