#include "engine/metrics/prefix_bound.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {

PrefixBound::PrefixBound(const std::vector<CoreConfig>& engines) {
  for (const CoreConfig& config : engines)
    engines_.push_back({config.page_tokens,
                        config.unit_tokens,
                        config.prefix_cache ? config.pages_gpu : 0,
                        config.steps_in_flight_max,
                        {}});
}

void PrefixBound::saw_event(Instant, EngineId, const Event& event) {
  const auto* ready = std::get_if<RequestReady>(&event);
  if (ready == nullptr) return;
  if (raw(ready->request) >= requests_.size()) requests_.resize(raw(ready->request) + 1);
  Request& request = requests_[raw(ready->request)];
  request.known = true;
  request.prompt = ready->prompt_tokens;
  request.asked = ready->output_tokens;
  request.identity.assign(ready->identity.begin(), ready->identity.end());
}

void PrefixBound::note(EngineId engine, What what, RequestId request) {
  KVT_CHECK(raw(request) < requests_.size());
  if (what == What::kAdmitted) requests_[raw(request)].admitted = true;
  if (requests_[raw(request)].admitted) engines_[raw(engine)].happened.push_back({what, raw(request)});
}

void PrefixBound::saw_command(Instant, const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) {
    for (const PlanEntry& entry : step->entries) {
      if (entry.first) note(step->engine, What::kAdmitted, entry.request);
    }
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    if (tokens->tokens == 1) note(tokens->engine, What::kFirstToken, tokens->request);
  }
  if (const auto* drop = std::get_if<DropRequestState>(&command)) {
    if (drop->reason == DropRequestState::Reason::kPreempted)
      note(drop->engine, What::kDetached, drop->request);
  }
  if (const auto* finish = std::get_if<FinishRequest>(&command)) {
    requests_[raw(finish->request)].tokens = finish->tokens;
    note(finish->engine, What::kEnded, finish->request);
  }
}

// The cache of one engine, with knowledge of the future. Pages are numbered in order of first occurrence; a
// page is identified by the page before it and its own units.
class BeladyCache {
 public:
  BeladyCache(const PrefixBound::Engine& engine, const std::vector<PrefixBound::Request>& requests)
      : engine_(engine), requests_(requests), pages_(1), paths_(requests.size()) {}

  uint64_t play() {
    look_ahead();
    uint32_t admission = 0;
    for (const auto& [what, request] : engine_.happened) {
      walk(paths_[request]);
      switch (what) {
        case PrefixBound::What::kAdmitted:
          admit(request, admission++);
          break;
        case PrefixBound::What::kFirstToken:
          charge(paths_[request].prompt_pages);
          break;
        case PrefixBound::What::kDetached:
          // The position that it had reached is unknown; assume the position at its end.
          for (const uint32_t id : path_) pages_[id].cached = pages_[id].cached || paths_[request].running;
          detach(request);
          break;
        case PrefixBound::What::kEnded:
          if (!paths_[request].running) break;
          for (const uint32_t id : path_) pages_[id].cached = true;
          charge(paths_[request].sure_pages);
          detach(request);
          break;
      }
    }
    return reused_;
  }

 private:
  static constexpr uint32_t kNoUse = UINT32_MAX;

  struct Page {
    uint32_t before = 0;     // the page before it; 0: none
    uint32_t next = kNoUse;  // the next admission that needs it
    uint32_t pins = 0;       // running requests that hold it
    bool cached = false;     // can be found
    bool charged = false;    // counts towards the size of the cache
  };
  // The pages that a request holds when it ends. Other requests find the part that their prompts share with
  // it.
  struct Path {
    uint32_t last = 0;  // page
    uint32_t pages = 0;
    uint32_t findable = 0;      // leading pages that the request itself could have found
    uint32_t prompt_pages = 0;  // leading pages that its prompt fills
    uint32_t sure_pages = 0;    // leading pages that it certainly held
    bool admitted = false;      // was admitted before
    bool running = false;
  };
  // Pages of one path, from the tail, whose next use is admission `next`.
  struct Piece {
    uint32_t next, depth, last;
    friend bool operator<(const Piece& a, const Piece& b) {
      return std::tie(a.next, a.depth, a.last) < std::tie(b.next, b.depth, b.last);
    }
  };

  Path path_of(const PrefixBound::Request& request) {
    const uint32_t page_units = engine_.page_tokens / engine_.unit_tokens;
    // The KV of the last token is never computed, unless steps were in flight when the request was cancelled
    // or ended early.
    const uint64_t computed = uint64_t{request.prompt} + (request.tokens > 0 ? request.tokens - 1 : 0);
    uint64_t left =
        (computed + (request.tokens < request.asked ? engine_.steps_in_flight : 0)) / engine_.page_tokens;
    Path path;
    uint64_t hash = 0;
    uint32_t units = 0;
    for (const UnitRun& run : request.identity) {
      for (uint32_t i = 0; i < run.count && left > 0; ++i) {
        hash = mix64(hash ^ mix64(run.space) ^ (run.first + i)) + 0x9e3779b97f4a7c15u;
        if (++units < page_units) continue;
        units = 0;
        const auto [known, fresh] = numbers_.try_emplace(hash, static_cast<uint32_t>(pages_.size()));
        if (fresh) pages_.push_back({.before = path.last});
        path.last = known->second;
        ++path.pages;
        --left;
      }
    }
    path.findable = std::min(path.pages, (request.prompt - 1) / engine_.page_tokens);
    path.prompt_pages = std::min(path.pages, request.prompt / engine_.page_tokens);
    path.sure_pages = static_cast<uint32_t>(std::min<uint64_t>(path.pages, computed / engine_.page_tokens));
    return path;
  }

  void walk(const Path& path) {
    path_.resize(path.pages);
    uint32_t id = path.last;
    for (uint32_t i = path.pages; i > 0; --i, id = pages_[id].before) path_[i - 1] = id;
  }

  // Determines the next use of each page, from the last admission backwards. Along a path, from its start to
  // its tail, the next use can only be later.
  void look_ahead() {
    std::vector<uint32_t> admissions;
    for (const auto& [what, request] : engine_.happened) {
      if (what != PrefixBound::What::kAdmitted) continue;
      admissions.push_back(request);
      if (paths_[request].pages == 0) paths_[request] = path_of(requests_[request]);
    }
    std::vector<uint32_t> wanted(pages_.size(), kNoUse);
    ahead_.resize(admissions.size());
    for (size_t at = admissions.size(); at-- > 0;) {
      const Path& path = paths_[admissions[at]];
      walk(path);
      for (uint32_t i = 0; i < path.pages; ++i) {
        uint32_t& next = wanted[path_[i]];
        if (ahead_[at].empty() || ahead_[at].back().first != next) ahead_[at].emplace_back(next, 0);
        ++ahead_[at].back().second;
        if (i < path.findable) next = static_cast<uint32_t>(at);
      }
    }
  }

  void admit(uint32_t request, uint32_t admission) {
    Path& path = paths_[request];
    uint32_t found = 0;
    while (found < path.findable && pages_[path_[found]].cached) ++found;
    if (!path.admitted) reused_ += uint64_t{found} * engine_.page_tokens;
    path.admitted = path.running = true;
    size_t i = 0;
    for (const auto& [next, count] : ahead_[admission]) {
      for (const size_t end = i + count; i < end; ++i) {
        pages_[path_[i]].next = next;
        ++pages_[path_[i]].pins;
        if (i < path.prompt_pages) pages_[path_[i]].cached = true;
      }
    }
  }

  // The first `count` pages of the path now occupy memory; evicts others if the cache is full.
  void charge(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      Page& page = pages_[path_[i]];
      if (page.charged || !page.cached) continue;
      page.charged = true;
      ++charged_;
    }
    while (charged_ > engine_.pages && !evictable_.empty()) {
      const Piece piece = evictable_.top();
      evictable_.pop();
      Page& page = pages_[piece.last];
      if (page.next != piece.next) continue;
      if (page.cached && page.charged && page.pins == 0) {
        page.cached = page.charged = false;
        --charged_;
      }
      if (piece.depth > 1 && pages_[page.before].next == piece.next)
        evictable_.push({piece.next, piece.depth - 1, page.before});
    }
  }

  void detach(uint32_t request) {
    Path& path = paths_[request];
    if (!path.running) return;
    path.running = false;
    for (uint32_t i = 0; i < path.pages; ++i) --pages_[path_[i]].pins;
    for (uint32_t i = path.pages; i > 0; --i) {
      const uint32_t next = pages_[path_[i - 1]].next;
      if (i < path.pages && pages_[path_[i]].next == next) continue;
      evictable_.push({next, i, path_[i - 1]});
    }
  }

  const PrefixBound::Engine& engine_;
  const std::vector<PrefixBound::Request>& requests_;
  std::vector<Page> pages_;  // [0] is the parent of all first pages
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<Path> paths_;  // by request
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>>
      ahead_;                             // by admission: (next use, pages), along its path
  std::priority_queue<Piece> evictable_;  // the latest next use on top, its tail first
  std::vector<uint32_t> path_;
  uint64_t charged_ = 0, reused_ = 0;
};

uint64_t PrefixBound::reused_tokens() const {
  uint64_t tokens = 0;
  for (const Engine& engine : engines_) {
    if (engine.pages > 0) tokens += BeladyCache(engine, requests_).play();
  }
  return tokens;
}

}  // namespace kvtwin
