#include "scenarios/serve/live_client.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

namespace kvtwin::serve {

LiveClient::LiveClient(const WallClock& clock, const Options& options, std::function<void()> notify)
    : clock_(clock), options_(options), notify_(std::move(notify)), triggers_(options.output_tokens_max) {
  std::iota(triggers_.begin(), triggers_.end(), 1u);
}

void LiveClient::submit(std::unique_ptr<LiveRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    const Instant at = request->arrived + options_.front_end.of(request->prompt.count());
    inbox_.emplace(at, Item{std::move(request), {}});
  }
  arrived_.notify_one();
}

void LiveClient::cancel(RequestId request) {
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = std::find_if(inbox_.begin(), inbox_.end(), [request](const auto& item) {
      return item.second.request && item.second.request->id == request;
    });
    if (waiting != inbox_.end()) return void(inbox_.erase(waiting));  // still in the front end
    inbox_.emplace(clock_.now(), Item{nullptr, request});
  }
  arrived_.notify_one();
}

void LiveClient::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_one();
}

void LiveClient::take_progress(std::vector<Progress>* progress) {
  const std::lock_guard lock(mutex_);
  progress->insert(progress->end(), progress_.begin(), progress_.end());
  progress_.clear();
  notified_ = false;
}

Duration LiveClient::lag() const {
  const std::lock_guard lock(mutex_);
  return lag_;
}

const LiveRequest* LiveClient::find(RequestId request) const {
  const auto found = requests_.find(raw(request));
  return found == requests_.end() ? nullptr : found->second.get();
}

void LiveClient::wake(Instant now, ClientEvents* events) {
  if (requests_.empty()) {
    if (!wait_for_arrival(now)) return;
  } else {
    std::this_thread::sleep_until(clock_.wall(now));
  }
  deliver(now, events);
  const auto tick = static_cast<int64_t>(static_cast<double>(kTick.ns) * clock_.speed());
  wake_at_ = requests_.empty() ? now : now + Duration{std::max<int64_t>(tick, 1)};
}

// Returns false if wake() has nothing to send yet; wake_at_ then says when it has.
bool LiveClient::wait_for_arrival(Instant now) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (inbox_.empty()) {
      arrived_.wait(lock);
      continue;
    }
    // An earlier one may come in while the first is in the front end.
    const WallClock::TimePoint due = clock_.wall(inbox_.begin()->first);
    if (due <= std::chrono::steady_clock::now()) break;
    arrived_.wait_until(lock, due);
  }
  if (stopping_) inbox_.clear();
  wake_at_ = inbox_.empty() ? kNever : inbox_.begin()->first;
  return !inbox_.empty() && wake_at_ <= now;
}

void LiveClient::deliver(Instant now, ClientEvents* events) {
  std::vector<Item> items;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    while (!inbox_.empty() && inbox_.begin()->first <= now)
      items.push_back(std::move(inbox_.extract(inbox_.begin()).mapped()));
    stopping = stopping_;
    lag_ = std::max(
        Duration{},
        Duration{std::chrono::nanoseconds(std::chrono::steady_clock::now() - clock_.wall(now)).count()});
  }
  for (Item& item : items) {
    if (item.request) {
      send(std::move(item.request), events);
    } else if (const auto found = requests_.find(raw(item.cancelled)); found != requests_.end()) {
      cancel_once(found->second.get(), events);
    }
  }
  if (!stopping) return;
  for (const auto& [id, request] : requests_) cancel_once(request.get(), events);
}

void LiveClient::cancel_once(LiveRequest* request, ClientEvents* events) {
  if (!std::exchange(request->cancelling, true)) events->push_back(RequestCancelled{request->id});
}

void LiveClient::send(std::unique_ptr<LiveRequest> request, ClientEvents* events) {
  if (request->session.empty()) request->session = derived_session(request->prompt);
  Session* const session = session_of(*request, events);
  request->session_id = session->id;
  request->index = session->requests++;
  ++session->live;
  LiveRequest& kept = *(requests_[raw(request->id)] = std::move(request));
  RequestReady ready;
  ready.request = kept.id;
  ready.session = kept.session_id;
  ready.index = kept.index;
  ready.prompt_tokens = kept.prompt.count();
  ready.output_tokens = kept.output_tokens;
  ready.identity = kept.identity;
  ready.triggers = {triggers_.data(), std::min<size_t>(kept.output_tokens, triggers_.size())};
  ready.turn = kept.prompt.turn();
  if (options_.roles) ready.roles = kept.prompt.roles();
  if (options_.spans) ready.spans = kept.prompt.spans();
  events->push_back(ready);
}

// A name that no client can give; "": the request is private.
std::string LiveClient::derived_session(const PromptTokens& prompt) {
  const std::optional<uint64_t> number = derived_.session_of(prompt.tokens(), prompt.first_message_end());
  return number ? std::string(1, '\0') + std::to_string(*number) : std::string();
}

LiveClient::Session* LiveClient::session_of(const LiveRequest& request, ClientEvents* events) {
  const auto fresh = [this] {
    Session session;
    if (free_.empty()) {
      session.id = SessionId{session_next_++};
      return session;
    }
    session = free_.back();
    free_.pop_back();
    return session;
  };
  if (request.session.empty()) return &(alone_[raw(request.id)] = fresh());
  auto found = sessions_.find(request.session);
  if (found == sessions_.end()) {
    if (sessions_.size() >= kSessionsMax) end_oldest_session(events);
    found = sessions_.emplace(request.session, fresh()).first;
    found->second.age = ages_.insert(ages_.end(), request.session);
  }
  ages_.splice(ages_.end(), ages_, found->second.age);
  return &found->second;
}

void LiveClient::end_oldest_session(ClientEvents* events) {
  const auto idle = std::find_if(ages_.begin(), ages_.end(),
                                 [this](const std::string& name) { return sessions_.at(name).live == 0; });
  if (idle == ages_.end()) return;
  const auto found = sessions_.find(*idle);
  events->push_back(SessionHint{found->second.id, SessionHint::Kind::kSessionEnds, {}});
  free_.push_back(found->second);
  sessions_.erase(found);
  ages_.erase(idle);
}

void LiveClient::tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents*) {
  const LiveRequest* const live = find(request);
  if (live != nullptr)
    report({request, Progress::Kind::kToken, tokens, live->cached_tokens, now, live->engine});
}

void LiveClient::request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                                  ClientEvents* events) {
  const LiveRequest* const live = find(request);
  if (live == nullptr) return;
  const auto kind = cancelled ? Progress::Kind::kCancelled : Progress::Kind::kFinished;
  report({request, kind, tokens, live->cached_tokens, now, live->engine});
  ended(request, events);
}

void LiveClient::request_rejected(Instant now, RequestId request, ClientEvents* events) {
  if (find(request) == nullptr) return;
  report({request, Progress::Kind::kRejected, 0, 0, now, {}});
  ended(request, events);
}

void LiveClient::ended(RequestId request, ClientEvents* events) {
  const auto found = requests_.find(raw(request));
  const std::string& name = found->second->session;
  if (name.empty()) {
    const auto session = alone_.find(raw(request));
    events->push_back(SessionHint{session->second.id, SessionHint::Kind::kSessionEnds, {}});
    session->second.live = 0;
    free_.push_back(session->second);
    alone_.erase(session);
  } else {
    --sessions_.at(name).live;
  }
  requests_.erase(found);
}

void LiveClient::report(const Progress& progress) {
  {
    const std::lock_guard lock(mutex_);
    progress_.push_back(progress);
    if (std::exchange(notified_, true)) return;
  }
  notify_();
}

void LiveClient::saw_command(Instant, const Command& command) {
  const auto* const launch = std::get_if<LaunchStep>(&command);
  if (launch == nullptr) return;
  for (const PlanEntry& entry : launch->entries) {
    if (!entry.first) continue;
    const auto found = requests_.find(raw(entry.request));
    if (found == requests_.end() || std::exchange(found->second->admitted, true)) continue;
    found->second->engine = launch->engine;
    found->second->cached_tokens = std::min(entry.context, found->second->prompt.count());
  }
}

}  // namespace kvtwin::serve
