#include "engine/prefix_bound.h"

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
  const auto* ready = std::get_if<CallReady>(&event);
  if (ready == nullptr) return;
  if (raw(ready->call) >= calls_.size()) calls_.resize(raw(ready->call) + 1);
  Call& call = calls_[raw(ready->call)];
  call.known = true;
  call.prompt = ready->prompt_tokens;
  call.asked = ready->output_tokens;
  call.identity.assign(ready->identity.begin(), ready->identity.end());
}

void PrefixBound::note(EngineId engine, What what, CallId call) {
  KVT_CHECK(raw(call) < calls_.size());
  if (what == What::kAdmitted) calls_[raw(call)].admitted = true;
  if (calls_[raw(call)].admitted) engines_[raw(engine)].happened.push_back({what, raw(call)});
}

void PrefixBound::saw_command(Instant, const Command& command) {
  if (const auto* step = std::get_if<LaunchStep>(&command)) {
    for (const PlanEntry& entry : step->entries) {
      if (entry.first) note(step->engine, What::kAdmitted, entry.call);
    }
  }
  if (const auto* tokens = std::get_if<TokensEmitted>(&command)) {
    if (tokens->tokens == 1) note(tokens->engine, What::kFirstToken, tokens->call);
  }
  if (const auto* drop = std::get_if<DropCallState>(&command)) {
    if (drop->reason == DropCallState::Reason::kPreempted) note(drop->engine, What::kLetGo, drop->call);
  }
  if (const auto* finish = std::get_if<FinishCall>(&command)) {
    calls_[raw(finish->call)].tokens = finish->tokens;
    note(finish->engine, What::kEnded, finish->call);
  }
}

// One engine's cache that knows the future. Pages are numbered as they are first met; a page is the page
// before it and its own units.
class BeladyCache {
 public:
  BeladyCache(const PrefixBound::Engine& engine, const std::vector<PrefixBound::Call>& calls)
      : engine_(engine), calls_(calls), pages_(1), paths_(calls.size()) {}

  uint64_t play() {
    look_ahead();
    uint32_t admission = 0;
    for (const auto& [what, call] : engine_.happened) {
      walk(paths_[call]);
      switch (what) {
        case PrefixBound::What::kAdmitted:
          admit(call, admission++);
          break;
        case PrefixBound::What::kFirstToken:
          charge(paths_[call].prompt_pages);
          break;
        case PrefixBound::What::kLetGo:
          // How far it had come is not known: as far as it ever will.
          for (const uint32_t id : path_) pages_[id].cached = pages_[id].cached || paths_[call].running;
          let_go(call);
          break;
        case PrefixBound::What::kEnded:
          if (!paths_[call].running) break;
          for (const uint32_t id : path_) pages_[id].cached = true;
          charge(paths_[call].sure_pages);
          let_go(call);
          break;
      }
    }
    return reused_;
  }

 private:
  static constexpr uint32_t kNoUse = UINT32_MAX;

  struct Page {
    uint32_t before = 0;     // the page before it; 0: none
    uint32_t next = kNoUse;  // the next admission that wants it
    uint32_t pins = 0;       // running calls that hold it
    bool cached = false;     // can be found
    bool charged = false;    // takes room
  };
  // What a call holds when it ends. Others find of it what their prompts have in common with it.
  struct Path {
    uint32_t last = 0;  // page
    uint32_t pages = 0;
    uint32_t findable = 0;      // leading pages that the call itself could have found
    uint32_t prompt_pages = 0;  // leading pages that its prompt fills
    uint32_t sure_pages = 0;    // leading pages that it held for certain
    bool admitted = false;      // before
    bool running = false;
  };
  // Pages of one path, that `next` admission wants next, from the tail on.
  struct Piece {
    uint32_t next, depth, last;
    friend bool operator<(const Piece& a, const Piece& b) {
      return std::tie(a.next, a.depth, a.last) < std::tie(b.next, b.depth, b.last);
    }
  };

  Path path_of(const PrefixBound::Call& call) {
    const uint32_t page_units = engine_.page_tokens / engine_.unit_tokens;
    // The last token's KV is never computed, unless steps ran on when the call was cancelled or ended early.
    const uint64_t computed = uint64_t{call.prompt} + (call.tokens > 0 ? call.tokens - 1 : 0);
    uint64_t left =
        (computed + (call.tokens < call.asked ? engine_.steps_in_flight : 0)) / engine_.page_tokens;
    Path path;
    uint64_t hash = 0;
    uint32_t units = 0;
    for (const UnitRun& run : call.identity) {
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
    path.findable = std::min(path.pages, (call.prompt - 1) / engine_.page_tokens);
    path.prompt_pages = std::min(path.pages, call.prompt / engine_.page_tokens);
    path.sure_pages = static_cast<uint32_t>(std::min<uint64_t>(path.pages, computed / engine_.page_tokens));
    return path;
  }

  void walk(const Path& path) {
    path_.resize(path.pages);
    uint32_t id = path.last;
    for (uint32_t i = path.pages; i > 0; --i, id = pages_[id].before) path_[i - 1] = id;
  }

  // Backwards through all admissions: which one wants each page next. Along a path that can only become
  // later.
  void look_ahead() {
    std::vector<uint32_t> admissions;
    for (const auto& [what, call] : engine_.happened) {
      if (what != PrefixBound::What::kAdmitted) continue;
      admissions.push_back(call);
      if (paths_[call].pages == 0) paths_[call] = path_of(calls_[call]);
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

  void admit(uint32_t call, uint32_t admission) {
    Path& path = paths_[call];
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

  // The first `count` pages of the path take room, and others go for it.
  void charge(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      Page& page = pages_[path_[i]];
      if (page.charged || !page.cached) continue;
      page.charged = true;
      ++charged_;
    }
    while (charged_ > engine_.pages && !loose_.empty()) {
      const Piece piece = loose_.top();
      loose_.pop();
      Page& page = pages_[piece.last];
      if (page.next != piece.next) continue;
      if (page.cached && page.charged && page.pins == 0) {
        page.cached = page.charged = false;
        --charged_;
      }
      if (piece.depth > 1 && pages_[page.before].next == piece.next)
        loose_.push({piece.next, piece.depth - 1, page.before});
    }
  }

  void let_go(uint32_t call) {
    Path& path = paths_[call];
    if (!path.running) return;
    path.running = false;
    for (uint32_t i = 0; i < path.pages; ++i) --pages_[path_[i]].pins;
    for (uint32_t i = path.pages; i > 0; --i) {
      const uint32_t next = pages_[path_[i - 1]].next;
      if (i < path.pages && pages_[path_[i]].next == next) continue;
      loose_.push({next, i, path_[i - 1]});
    }
  }

  const PrefixBound::Engine& engine_;
  const std::vector<PrefixBound::Call>& calls_;
  std::vector<Page> pages_;  // [0] stands before all first ones
  std::unordered_map<uint64_t, uint32_t> numbers_;
  std::vector<Path> paths_;  // by call
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>>
      ahead_;                         // by admission: (next, pages), along its path
  std::priority_queue<Piece> loose_;  // the one wanted last on top, its tail first
  std::vector<uint32_t> path_;
  uint64_t charged_ = 0, reused_ = 0;
};

uint64_t PrefixBound::reused_tokens() const {
  uint64_t tokens = 0;
  for (const Engine& engine : engines_) {
    if (engine.pages > 0) tokens += BeladyCache(engine, calls_).play();
  }
  return tokens;
}

}  // namespace kvtwin
