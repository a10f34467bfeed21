#include "traces/tasks/make_task.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "traces/tasks/task_session.h"

namespace kvtwin {
namespace {

using namespace task;

constexpr uint64_t kTaskSessionsMax = 10'000'000;
constexpr uint32_t kTaskTokensMax = 8'192, kQuestionsMax = 64;
constexpr char kMixed[] = "mixed";

Result<void> check(const TaskOptions& options) {
  bool known = options.task == kMixed;
  std::string names = kMixed;
  for (const NamedTask& one : named_tasks()) {
    known = known || options.task == one.name;
    names += fmt::format(", {}", one.name);
  }
  if (!known)
    return make_error("TASK", fmt::format("no task \"{}\"", options.task.substr(0, 40)),
                      "there are " + names);
  if (options.split != "train" && options.split != "test")
    return make_error("--split", fmt::format("is \"{}\"", options.split.substr(0, 40)), "train or test");
  const struct {
    const char* flag;
    uint64_t value, low, high;
  } rows[] = {{"--sessions", options.sessions, 1, kTaskSessionsMax},
              {"--tokens", options.tokens, kTaskTokensMin, kTaskTokensMax},
              {"--questions", options.questions, 1, kQuestionsMax}};
  for (const auto& row : rows) {
    if (row.value < row.low || row.value > row.high)
      return make_error(row.flag, fmt::format("is {}", row.value),
                        fmt::format("{} to {} is right", row.low, row.high));
  }
  return {};
}

v1::TraceHeader header_of(const TaskOptions& options) {
  v1::TraceHeader header;
  header.set_schema_version(1);
  header.set_trace_id(fmt::format("task-{}-{}-{}-seed{}{}", options.task, options.split, options.sessions,
                                  options.seed, options.drop_turns ? "-turns-dropped" : ""));
  header.mutable_source()->set_name("task:" + options.task);
  header.mutable_source()->set_licence("Apache-2.0");
  header.mutable_source()->set_importer("kvtwin trace make-task");
  v1::Tokenizer* tokenizer = header.add_tokenizers();
  tokenizer->set_name("kvtwin-tasks");
  tokenizer->set_vocab(kVocab);
  tokenizer->set_prov(v1::SYNTHESISED);
  header.add_models("kvtwin-tiny");
  for (uint32_t i = 0; i < kTools; ++i) header.add_tool_names(fmt::format("tool_{}", i));
  v1::SynthRecipe* made_by = header.add_recipes();
  made_by->set_name("task:" + options.task);
  nlohmann::json params = {{"sessions", options.sessions},
                           {"split", options.split},
                           {"tokens", options.tokens},
                           {"questions", options.questions}};
  if (options.drop_turns) params["drop_turns"] = true;
  made_by->set_params_json(params.dump());
  made_by->set_seed(options.seed);
  for (const char* field : {"Span.role", "Span.tokens", "Span.token_ids", "LlmRequest.prompt_tokens",
                            "LlmRequest.output_tokens", "LlmRequest.think_ns", "ToolCall.duration_ns"}) {
    v1::FieldPolicy* policy = header.add_policies();
    policy->set_field(field);
    policy->set_prov(v1::SYNTHESISED);
    policy->set_recipe(1);
  }
  header.set_session_arrivals(v1::ARR_NONE);
  header.set_request_arrivals(v1::ARR_NONE);
  header.set_time_resolution_ns(1);
  return header;
}

// Version 1.0 of the format: the header is Python text, padded so that data start at a multiple of 64.
std::string npy_header(const char* type, uint64_t rows, uint32_t columns) {
  std::string text =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", type, rows, columns);
  text.append(63 - (10 + text.size()) % 64, ' ');
  text += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

Result<void> write_array(const std::string& path, const std::string& header, const std::string& bytes) {
  const std::string draft = path + ".part";
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << header << bytes;
  file.close();
  if (!file || std::rename(draft.c_str(), path.c_str()) != 0)
    return make_error(path, "cannot be written", "check the folder, its permissions and the disk's space");
  return {};
}

}  // namespace

std::vector<TaskInfo> tasks() {
  std::vector<TaskInfo> out = {
      {kMixed, "sessions of all others in turn, but for those that no model learned from"}};
  for (const NamedTask& one : named_tasks()) out.push_back({one.name, one.description});
  return out;
}

Result<void> make_task(const TaskOptions& options, TraceSink* sink) {
  if (Result<void> ok = check(options); !ok) return ok;
  if (Result<void> sent = sink->header(header_of(options)); !sent) return sent;
  TaskPlan plan{.task = options.task,
                .seed = draw({options.seed, options.split == "test" ? 2u : 1u}),
                .tokens = options.tokens,
                .questions = options.questions,
                .drop_turns = options.drop_turns};
  std::vector<std::string> mix;
  for (const NamedTask& one : named_tasks()) {
    if (one.trained) mix.push_back(one.name);
  }
  for (uint64_t i = 0; i < options.sessions; ++i) {
    if (options.task == kMixed) plan.task = mix[i % mix.size()];
    if (Result<void> sent = sink->session(make_session(plan, i)); !sent) return sent;
  }
  return sink->done();
}

Result<void> TaskArrays::header(const v1::TraceHeader&) { return {}; }
Result<void> TaskArrays::shared_spans(const v1::SharedSpanTable&) {
  return make_error(prefix_, "the trace has shared spans", "arrays are made of tasks");
}

Result<void> TaskArrays::session(const v1::Session& session) {
  std::vector<char> mark(static_cast<size_t>(session.spans_size()));
  for (const v1::Node& node : session.nodes()) {
    if (!node.has_llm()) continue;
    bool scored = false;
    for (const v1::Extra& extra : node.extras())
      scored = scored ||
               (extra.key() == kTaskExtra && extra.value_json().find("\"scored\":true") != std::string::npos);
    for (const v1::SpanRun& run : node.llm().output()) {
      for (uint32_t i = 0; i < run.count(); ++i) mark[run.first() + i] = scored ? 2 : 1;
    }
  }
  uint32_t at = 0;
  for (int i = 0; i < session.spans_size(); ++i) {
    for (const uint32_t id : session.spans(i).token_ids()) {
      if (at++ == tokens_)
        return make_error(prefix_,
                          fmt::format("session '{}' has more than {} tokens", session.id(), tokens_));
      ids_ += static_cast<char>(id & 0xff);
      ids_ += static_cast<char>(id >> 8);
      marks_ += mark[static_cast<size_t>(i)];
    }
  }
  ids_.append(size_t{2} * (tokens_ - at), '\0');
  marks_.append(tokens_ - at, '\0');
  ++rows_;
  return {};
}

Result<void> TaskArrays::done() {
  // The second array is written last, so that its existence implies the first.
  if (auto ok = write_array(prefix_ + ".tokens.npy", npy_header("<u2", rows_, tokens_), ids_); !ok) return ok;
  return write_array(prefix_ + ".scored.npy", npy_header("|u1", rows_, tokens_), marks_);
}

}  // namespace kvtwin
