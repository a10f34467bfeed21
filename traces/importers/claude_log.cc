#include "traces/importers/claude_log.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/base/prng.h"
#include "traces/format/compact_json.h"
#include "traces/format/json_fields.h"

namespace kvtwin::claude {
namespace {

using nlohmann::json;

constexpr uint64_t kImageChars = 5'850;  // a screenshot of about 1,500 tokens
constexpr uint64_t kLogTokensMax = uint64_t{1} << 29;
constexpr uint64_t kRecordBytesMax = uint64_t{192} << 20;  // about 400,000 records

uint64_t memory_of(const Record& record) {
  uint64_t bytes = sizeof record + record.blocks.capacity() * sizeof(Block);
  for (const std::string* text :
       {&record.uuid, &record.parent, &record.agent, &record.message, &record.model})
    bytes += text->capacity();
  for (const Block& block : record.blocks)
    bytes += block.tool_id.capacity() + block.tool.capacity() + block.agent_kind.capacity();
  return bytes;
}

uint64_t hash_of(std::string_view text) {
  uint64_t state = text.size();
  for (const char c : text) state = mix64(state ^ static_cast<unsigned char>(c)) + 0x9e3779b97f4a7c15u;
  return state;
}

// "2026-02-07T10:47:19.340Z", with any number of decimals up to nine.
Result<int64_t> unix_ns(const std::string& text) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0, used = 0;
  const bool good = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &year, &month, &day, &hour,
                                &minute, &second, &used) == 6 &&
                    used > 0;
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  const bool in_range = year >= 1970 && year < 2200 && date.ok() && hour >= 0 && hour < 24 && minute >= 0 &&
                        minute < 60 && second >= 0 && second <= 60;
  if (!good || !in_range)
    return make_error("", fmt::format("\"{}\" is no time", text.substr(0, 40)), "2026-02-07T10:47:19.340Z");
  int64_t fraction = 0, unit = 1'000'000'000;
  for (size_t i = static_cast<size_t>(used) + 1;
       text[static_cast<size_t>(used)] == '.' && i < text.size() && unit > 1; ++i) {
    if (text[i] < '0' || text[i] > '9') break;
    unit /= 10;
    fraction += unit * (text[i] - '0');
  }
  const int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1'000'000'000 + fraction;
}

// The length of the input or output of a tool: texts as they are, anything else as JSON.
void measure(const json& content, Block* block) {
  if (content.is_string()) {
    block->chars += content.get_ref<const std::string&>().size();
  } else if (content.is_array()) {
    for (const json& part : content) {
      const auto text = part.is_object() ? part.find("text") : part.end();
      if (part.is_object() && text != part.end() && text->is_string()) {
        block->chars += text->get_ref<const std::string&>().size();
      } else if (part.is_object() && part.value("type", json()) == "image") {
        block->chars += kImageChars;
      } else {
        block->chars += part.dump(-1, ' ', false, json::error_handler_t::replace).size();
      }
    }
  } else if (!content.is_null()) {
    block->chars += content.dump(-1, ' ', false, json::error_handler_t::replace).size();
  }
}

const json& member(const json& object, const char* name) {
  static const json kNull;
  const auto it = object.is_object() ? object.find(name) : object.end();
  return it == object.end() ? kNull : *it;
}

std::string text_at(const json& object, const char* name) {
  const json& value = member(object, name);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool true_at(const json& object, const char* name) { return member(object, name) == true; }

Block tool_use(const json& part) {
  Block block{.kind = Block::Kind::kToolUse};
  block.tool_id = text_at(part, "id");
  block.tool = text_at(part, "name");
  const json& input = member(part, "input");
  measure(input, &block);
  block.chars += block.tool.size();
  if (block.tool == "Task" || block.tool == "Agent") {
    block.agent_kind = text_at(input, "subagent_type");
    block.prompt_hash = hash_of(text_at(input, "prompt"));
  }
  return block;
}

// Blocks of an unknown type are measured as text, because later versions of the log may add types.
void add_block(const json& part, Record* record) {
  const std::string type = text_at(part, "type");
  Block block;
  if (type == "tool_use" || type == "server_tool_use") {
    block = tool_use(part);
  } else if (type == "tool_result") {
    block.kind = Block::Kind::kToolResult;
    block.tool_id = text_at(part, "tool_use_id");
    block.failed = true_at(part, "is_error");
    measure(member(part, "content"), &block);
  } else if (type == "thinking" || type == "redacted_thinking") {
    block.kind = Block::Kind::kThinking;
    measure(member(part, type == "thinking" ? "thinking" : "data"), &block);
  } else if (type == "image" || type == "document") {
    block.kind = Block::Kind::kImage;
    block.chars = kImageChars;
  } else {
    const std::string text = text_at(part, "text");
    block.chars = text.size();
    record->text_hash = hash_of(text);
  }
  record->blocks.push_back(std::move(block));
}

void read_usage(const json& message, JsonFields* at, Record* record) {
  if (!member(message, "usage").is_object()) return;
  JsonFields usage(member(message, "usage"), at->where() + ": usage");
  record->cache_read = usage.u64_if("cache_read_input_tokens").value_or(0);
  record->cache_write = usage.u64_if("cache_creation_input_tokens").value_or(0);
  record->output_tokens = usage.u64_if("output_tokens").value_or(0);
  const uint64_t input = usage.u64_if("input_tokens").value_or(0);
  for (const uint64_t count : {input, record->cache_read, record->cache_write, record->output_tokens}) {
    if (count > kLogTokensMax)
      usage.problem(fmt::format("counts {} tokens", count), fmt::format("at most {}", kLogTokensMax));
  }
  record->prompt_tokens = input + record->cache_read + record->cache_write;
  if (usage.failed()) at->problem(usage.error().value().what, usage.error().value().hint);
}

}  // namespace

uint32_t tokens_of(uint64_t chars) {
  const uint64_t tokens = (chars * 10 + 38) / 39;
  return static_cast<uint32_t>(tokens == 0 ? 1 : tokens > kLogTokensMax ? kLogTokensMax : tokens);
}

Log& Logs::log(const std::string& id) {
  const auto [at, fresh] = index_.try_emplace(id, logs_.size());
  if (fresh) logs_.push_back({.id = id, .records = {}});
  return logs_[at->second];
}

Result<void> Logs::line(const std::string& name, uint64_t number, std::string_view text) {
  const std::string where = fmt::format("{}:{}", name, number);
  Result<CompactJson> parsed = parse_compact_json(text, {});
  if (!parsed) return make_error(where, parsed.error().what, "one JSON object per line");
  const json& tree = parsed->tree;
  JsonFields fields(tree, where);
  if (fields.failed()) return fields.error();
  const std::string type = text_at(tree, "type");
  if (type == "summary") ++titles_;
  const bool boundary = type == "system" && text_at(tree, "subtype") == "compact_boundary";
  if (type != "user" && type != "assistant" && !boundary) return {};
  Record record;
  record.assistant = type == "assistant";
  record.sidechain = true_at(tree, "isSidechain");
  record.compacted = boundary || true_at(tree, "isCompactSummary");
  record.uuid = text_at(tree, "uuid");
  record.parent = text_at(tree, "parentUuid");
  record.agent = text_at(tree, "agentId");
  const Result<int64_t> at = unix_ns(text_at(tree, "timestamp"));
  if (!at) return make_error(where, "timestamp " + at.error().what, at.error().hint);
  record.at_ns = *at;
  const json& message = member(tree, "message");
  const json& content = member(message, "content");
  if (content.is_string()) {
    const std::string& words = content.get_ref<const std::string&>();
    record.text_hash = hash_of(words);
    record.blocks.push_back({.chars = words.size()});
  } else if (content.is_array()) {
    for (const json& part : content) add_block(part, &record);
  }
  const json& result = member(tree, "toolUseResult");
  if (result.is_object()) {
    JsonFields ended(result, where + ": toolUseResult");
    record.agent_tokens = ended.u64_if("totalTokens").value_or(0);
    // Other tools may use the names.
    record.agent_tool_uses = ended.u32_if("totalToolUseCount").value_or(0);
  }
  if (record.assistant) {
    record.message = text_at(message, "id");
    if (record.message.empty()) record.message = record.uuid;
    record.model = text_at(message, "model");
    record.stop_reason = text_at(message, "stop_reason");
    record.api_error = true_at(tree, "isApiErrorMessage") || record.model == "<synthetic>";
    read_usage(message, &fields, &record);
    if (fields.failed()) return fields.error();
  }
  bytes_ += memory_of(record);
  if (bytes_ > kRecordBytesMax)
    return make_error(where, fmt::format("more than {} MiB of records", kRecordBytesMax >> 20),
                      "import it in parts");
  const std::string session = text_at(tree, "sessionId");
  log(session.empty() ? name : session).records.push_back(std::move(record));
  return {};
}

Result<void> Logs::add(const std::string& name, std::string_view bytes) {
  uint64_t number = 0;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (Result<void> good = line(name, number, text); !good) return good;
  }
  return {};
}

uint32_t Names::operator()(const std::string& name) {
  const auto [at, fresh] = index_.try_emplace(name, static_cast<uint32_t>(list_.size()));
  if (fresh) list_.push_back(name);
  return at->second;
}

}  // namespace kvtwin::claude
