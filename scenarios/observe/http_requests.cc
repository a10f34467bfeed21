#include "scenarios/observe/http_requests.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <map>

#include "scenarios/observe/stream_reader.h"
#include "traces/logs/log_json.h"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kModelsBytesMax = size_t{16} << 20;

struct Transfer {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  std::string body;
  HttpReply reply;
  StreamReader stream;
  Clock::time_point origin;

  ~Transfer() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
  }
  int64_t now_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - origin).count();
  }
};

size_t take_stream(char* bytes, size_t, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  transfer.stream.add({bytes, count}, transfer.now_ns(), &transfer.reply);
  return count;
}

size_t take_text(char* bytes, size_t, size_t count, void* user) {
  std::string& text = *static_cast<std::string*>(user);
  if (text.size() + count > kModelsBytesMax) return 0;
  text.append(bytes, count);
  return count;
}

// A header's value: session names come from a trace, and may have any characters.
std::string header_value(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '_';
  }
  return text;
}

uint16_t engine_of(CURL* easy) {
  uint16_t engine = 0;
  curl_header* header = nullptr;
  if (curl_easy_header(easy, "X-Kvtwin-Engine", 0, CURLH_HEADER, -1, &header) != CURLHE_OK) return 0;
  const std::string_view text = header->value;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), engine);
  return parsed.ec == std::errc() ? engine : uint16_t{0};
}

// "http://host:8000" and "http://host:8000/v1/" -> "http://host:8000/v1".
std::string base_of(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url.ends_with("/v1") ? url : url + "/v1";
}

}  // namespace

Result<void> check_server_url(const std::string& text) {
  const std::string right = "http:// or https://, a host and a port, as in http://localhost:8000";
  CURLU* const url = curl_url();
  const CURLUcode code = curl_url_set(url, CURLUPART_URL, text.c_str(), CURLU_NON_SUPPORT_SCHEME);
  char* scheme = nullptr;
  std::string problem;
  if (code != CURLUE_OK) {
    problem = fmt::format("'{}' is not a URL: {}", text, curl_url_strerror(code));
  } else if (curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
             std::string_view(scheme) != "http" && std::string_view(scheme) != "https") {
    problem = fmt::format("'{}' is not an address of a web server: its scheme is {}", text, scheme);
  }
  curl_free(scheme);
  curl_url_cleanup(url);
  if (problem.empty()) return {};
  return make_error("URL", problem, right);
}

struct HttpRequests::State {
  explicit State(const HttpOptions& given) : options(given), base(base_of(given.url)) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    multi = curl_multi_init();
  }
  ~State() {
    for (const auto& [easy, transfer] : transfers) curl_multi_remove_handle(multi, easy);
    transfers.clear();
    curl_multi_cleanup(multi);
    curl_global_cleanup();
  }

  void prepare(CURL* easy, const std::string& url, curl_slist** headers) const {
    if (!options.api_key.empty())
      *headers = curl_slist_append(*headers, ("Authorization: Bearer " + options.api_key).c_str());
    curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(options.timeout_ms));
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 10'000L);
  }

  const HttpOptions options;
  const std::string base;
  const Clock::time_point origin = Clock::now();
  CURLM* multi = nullptr;
  std::map<CURL*, std::unique_ptr<Transfer>> transfers;
};

HttpRequests::HttpRequests(const HttpOptions& options) : state_(std::make_unique<State>(options)) {}
HttpRequests::~HttpRequests() = default;

int64_t HttpRequests::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - state_->origin).count();
}

Result<std::vector<std::string>> HttpRequests::models() {
  const std::string url = state_->base + "/models";
  std::string text;
  Transfer transfer;
  transfer.easy = curl_easy_init();
  state_->prepare(transfer.easy, url, &transfer.headers);
  curl_easy_setopt(transfer.easy, CURLOPT_TIMEOUT_MS, 30'000L);
  curl_easy_setopt(transfer.easy, CURLOPT_WRITEFUNCTION, take_text);
  curl_easy_setopt(transfer.easy, CURLOPT_WRITEDATA, &text);
  const CURLcode code = curl_easy_perform(transfer.easy);
  if (code != CURLE_OK)
    return make_error(url, fmt::format("cannot be reached: {}", curl_easy_strerror(code)),
                      "the address of a running server, as in http://localhost:8000");
  long status = 0;
  curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200)
    return make_error(url, fmt::format("answers with HTTP {}", status),
                      status == 401 || status == 403 ? "an API key in the environment: --api-key-env=NAME"
                                                     : "an OpenAI-compatible server");
  const Result<CompactJson> parsed = parse_compact_json(text, {});
  const nlohmann::json* const data = parsed ? any_of(&parsed->tree, {"data"}) : nullptr;
  if (data == nullptr || !data->is_array())
    return make_error(url, "does not list models", "an OpenAI-compatible server");
  std::vector<std::string> names;
  for (const nlohmann::json& model : *data) names.push_back(text_of(any_of(&model, {"id"})));
  return names;
}

void HttpRequests::send(uint64_t id, const std::string& path, const std::string& body,
                        const std::string& session) {
  auto transfer = std::make_unique<Transfer>();
  CURL* const easy = curl_easy_init();
  transfer->easy = easy;
  transfer->origin = state_->origin;
  transfer->body = body;
  transfer->reply.id = id;
  transfer->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  if (!session.empty())
    transfer->headers =
        curl_slist_append(transfer->headers, ("X-Session-Id: " + header_value(session)).c_str());
  state_->prepare(easy, state_->base + "/" + path, &transfer->headers);
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(transfer->body.size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->body.c_str());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_stream);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
  transfer->reply.sent_ns = now_ns();
  curl_multi_add_handle(state_->multi, easy);
  state_->transfers.emplace(easy, std::move(transfer));
}

std::vector<HttpReply> HttpRequests::poll(int wait_ms) {
  int running = 0;
  curl_multi_perform(state_->multi, &running);
  curl_multi_poll(state_->multi, nullptr, 0, wait_ms, nullptr);
  curl_multi_perform(state_->multi, &running);
  std::vector<HttpReply> out;
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(state_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const easy = message->easy_handle;
    const CURLcode code = message->data.result;
    Transfer& transfer = *state_->transfers.at(easy);
    transfer.reply.end_ns = now_ns();
    transfer.reply.engine = engine_of(easy);
    long status = 0;
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_OK)
      transfer.stream.end(status, &transfer.reply);
    else
      transfer.reply.error = curl_easy_strerror(code);
    out.push_back(std::move(transfer.reply));
    curl_multi_remove_handle(state_->multi, easy);
    state_->transfers.erase(easy);
  }
  return out;
}

void HttpRequests::drop_all() {
  for (const auto& [easy, transfer] : state_->transfers) curl_multi_remove_handle(state_->multi, easy);
  state_->transfers.clear();
}

}  // namespace kvtwin
