// Whose prefixes they are: only where the PrefixEviction asks for it.
//
// A node names the sessions whose calls ended on it or below it; so its parent names them too. A session
// lists the nodes that name it; the list may hold nodes that have gone since, and is put right when it is
// read.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/prefix_index.h"

namespace kvtwin {
namespace {

bool contains(const std::vector<uint32_t>& items, uint32_t item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

}  // namespace

Awaited PrefixIndex::awaited(const Node& node) const {
  Awaited most = Awaited::kNo;
  for (const uint32_t session : node.sessions) most = std::max(most, owners_[session].awaited);
  return most;
}

PrefixIndex::Owner& PrefixIndex::owner(SessionId session) {
  if (raw(session) >= owners_.size()) owners_.resize(raw(session) + 1);
  return owners_[raw(session)];
}

void PrefixIndex::mark(const Lease& lease, SessionId session) {
  if (!asks_sessions_) return;
  Owner& who = owner(session);
  for (uint32_t id = raw(lease.node); id != 0; id = nodes_[id].parent) {
    KVT_CHECK(nodes_[id].locks > 0);  // so it stands in no heap, by its rank so far
    if (contains(nodes_[id].sessions, raw(session))) break;
    nodes_[id].sessions.push_back(raw(session));
    who.nodes.push_back(id);
  }
}

void PrefixIndex::begin_call(SessionId session) {
  if (!asks_sessions_) return;
  ++owner(session).calls;
  waited_for_.remove(raw(session));
  await(raw(session), Awaited::kHere);
}

void PrefixIndex::end_call(SessionId session, Instant until) {
  if (!asks_sessions_) return;
  Owner& who = owner(session);
  KVT_CHECK(who.calls > 0);
  if (--who.calls > 0) return;
  if (who.announced) {
    waited_for_.set(raw(session), static_cast<uint64_t>(until.ns));
  } else {
    await(raw(session), Awaited::kNo);
  }
}

void PrefixIndex::expect(SessionId session, Instant until) {
  if (!asks_sessions_ || owner(session).calls > 0) return;
  owner(session).announced = true;
  waited_for_.set(raw(session), static_cast<uint64_t>(until.ns));
  await(raw(session), Awaited::kExpected);
}

void PrefixIndex::forget(SessionId session) {
  if (!asks_sessions_ || owner(session).calls > 0) return;
  waited_for_.remove(raw(session));
  Owner& who = owner(session);
  who.announced = false;
  who.awaited = Awaited::kNo;
  for (const uint32_t id : who.nodes) {
    if (std::erase(nodes_[id].sessions, raw(session)) > 0) file(id);
  }
  who.nodes = {};
}

void PrefixIndex::forget_overdue(Instant now) {
  while (!waited_for_.empty() && waited_for_.top_rank() < static_cast<uint64_t>(now.ns)) {
    const uint32_t session = waited_for_.top();
    waited_for_.remove(session);
    await(session, Awaited::kNo);
  }
}

void PrefixIndex::await(uint32_t session, Awaited awaited) {
  Owner& who = owners_[session];
  if (who.awaited == awaited) return;
  who.awaited = awaited;
  std::sort(who.nodes.begin(), who.nodes.end());
  who.nodes.erase(std::unique(who.nodes.begin(), who.nodes.end()), who.nodes.end());
  std::erase_if(who.nodes, [&](uint32_t id) { return !contains(nodes_[id].sessions, session); });
  for (const uint32_t id : who.nodes) file(id);
}

// The node `upper` came to stand above `id`, out of it.
void PrefixIndex::split_sessions(uint32_t id, uint32_t upper) {
  nodes_[upper].sessions = nodes_[id].sessions;
  for (const uint32_t session : nodes_[id].sessions) owners_[session].nodes.push_back(upper);
}

void PrefixIndex::check_sessions(uint32_t id) const {
  const Node& node = nodes_[id];
  for (const uint32_t session : node.sessions) {
    KVT_CHECK(asks_sessions_);
    KVT_CHECK(contains(owners_[session].nodes, id));
    KVT_CHECK(node.parent == 0 || contains(nodes_[node.parent].sessions, session));
  }
}

}  // namespace kvtwin
