// PrefixIndex: the sessions that use a prefix; maintained only if PrefixEviction needs sessions.
//
// A *mark* is placed on a node on which a request of a session ended. The session uses that node and all
// nodes above it. Each node counts the marks on it and below it whose sessions are awaited, so its own need
// is known without iterating over sessions. When a node is dropped, its marks move to the parent. A mark
// therefore climbs its own path at most once, and no operation iterates over the sessions that share a node.

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

Awaited PrefixIndex::awaited(const Node& node) {
  if (node.marks_here > 0) return Awaited::kHere;
  return node.marks_expected > 0 ? Awaited::kExpected : Awaited::kNo;
}

// A mark on `id` now counts as `to` instead of `from`; kNo: not at all.
void PrefixIndex::recount(uint32_t id, Awaited from, Awaited to) {
  if (from == to) return;
  for (; id != 0; id = nodes_[id].parent) {
    Node& node = nodes_[id];
    const Awaited before = awaited(node);
    node.marks_expected += (to == Awaited::kExpected ? 1 : 0) - (from == Awaited::kExpected ? 1 : 0);
    node.marks_here += (to == Awaited::kHere ? 1 : 0) - (from == Awaited::kHere ? 1 : 0);
    if (awaited(node) != before) file(id);
  }
}

void PrefixIndex::put_mark(uint32_t mark, uint32_t id) {
  const uint32_t next = nodes_[id].first_mark;
  marks_[mark].node = id;
  marks_[mark].previous = 0;
  marks_[mark].next = next;
  if (next != 0) marks_[next].previous = mark;
  nodes_[id].first_mark = mark;
}

void PrefixIndex::take_mark(uint32_t mark) {
  const auto [session, node, next, previous] = marks_[mark];
  (previous != 0 ? marks_[previous].next : nodes_[node].first_mark) = next;
  if (next != 0) marks_[next].previous = previous;
}

// REQUIRES: the mark is on no node.
void PrefixIndex::drop_mark(uint32_t mark) {
  std::erase(owners_[marks_[mark].session].marks, mark);
  unused_marks_.push_back(mark);
}

// The node is dropped; the nodes above it remain used.
void PrefixIndex::lift_marks(uint32_t id) {
  const uint32_t parent = nodes_[id].parent;
  while (nodes_[id].first_mark != 0) {
    const uint32_t mark = nodes_[id].first_mark;
    take_mark(mark);
    parent != 0 ? put_mark(mark, parent) : drop_mark(mark);
  }
}

PrefixIndex::Owner& PrefixIndex::owner(SessionId session) {
  if (raw(session) >= owners_.size()) owners_.resize(raw(session) + 1);
  return owners_[raw(session)];
}

void PrefixIndex::mark(const Pin& pin, SessionId session) {
  const uint32_t at = raw(pin.node);
  if (!needs_sessions_ || at == 0) return;
  Owner& who = owner(session);
  path_.clear();
  for (uint32_t id = at; id != 0; id = nodes_[id].parent) {
    KVT_CHECK(nodes_[id].locks > 0);  // so the node is in no heap, and its rank may change
    path_.push_back(id);
  }
  // Marks further up the path are implied by the new one.
  for (size_t i = who.marks.size(); i > 0; --i) {
    const uint32_t old = who.marks[i - 1];
    if (std::find(path_.begin(), path_.end(), marks_[old].node) == path_.end()) continue;
    recount(marks_[old].node, who.awaited, Awaited::kNo);
    take_mark(old);
    drop_mark(old);
  }
  if (unused_marks_.empty()) {
    if (marks_.empty()) marks_.emplace_back();
    unused_marks_.push_back(static_cast<uint32_t>(marks_.size()));
    marks_.emplace_back();
  }
  const uint32_t mark = unused_marks_.back();
  unused_marks_.pop_back();
  marks_[mark].session = raw(session);
  who.marks.push_back(mark);
  put_mark(mark, at);
  recount(at, Awaited::kNo, who.awaited);
}

void PrefixIndex::begin_request(Instant now, SessionId session) {
  if (!needs_sessions_) return;
  Owner& who = owner(session);
  ++who.requests;
  if (std::exchange(who.paused, false)) eviction_->resumed(who.pause, now - who.since);
  waited_for_.remove(raw(session));
  await(raw(session), Awaited::kHere);
}

void PrefixIndex::end_request(Instant now, SessionId session) {
  if (!needs_sessions_) return;
  Owner& who = owner(session);
  KVT_CHECK(who.requests > 0);
  if (--who.requests > 0) return;
  if (who.announced) {
    waited_for_.set(raw(session), static_cast<uint64_t>((now + kPatience).ns));
  } else {
    await(raw(session), Awaited::kNo);
  }
}

void PrefixIndex::expect(Instant now, SessionId session, const SessionPause& pause) {
  if (!needs_sessions_ || owner(session).requests > 0) return;
  Owner& who = owner(session);
  who.announced = who.paused = true;
  who.pause = pause;
  who.since = now;
  waited_for_.set(raw(session), static_cast<uint64_t>((now + eviction_->patience(pause)).ns));
  await(raw(session), Awaited::kExpected);
}

void PrefixIndex::forget(SessionId session) {
  if (!needs_sessions_ || owner(session).requests > 0) return;
  waited_for_.remove(raw(session));
  Owner& who = owner(session);
  await(raw(session), Awaited::kNo);
  who.announced = who.paused = false;
  for (const uint32_t mark : who.marks) take_mark(mark);
  unused_marks_.insert(unused_marks_.end(), who.marks.begin(), who.marks.end());
  who.marks = {};
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
  const Awaited before = std::exchange(who.awaited, awaited);
  for (const uint32_t mark : who.marks) recount(marks_[mark].node, before, awaited);
}

// Checks invariant (7) and the lists of marks.
void PrefixIndex::check_marks() const {
  std::vector<uint32_t> expected(nodes_.size(), 0), here(nodes_.size(), 0);
  size_t marks = 0;
  for (size_t session = 0; session < owners_.size(); ++session) {
    const Owner& who = owners_[session];
    marks += who.marks.size();
    for (const uint32_t mark : who.marks) {
      KVT_CHECK(needs_sessions_ && marks_[mark].session == session);
      for (uint32_t id = marks_[mark].node; id != 0; id = nodes_[id].parent) {
        expected[id] += who.awaited == Awaited::kExpected ? 1 : 0;
        here[id] += who.awaited == Awaited::kHere ? 1 : 0;
      }
    }
  }
  size_t on_nodes = 0;
  for (uint32_t id = 1; id < nodes_.size(); ++id) {
    KVT_CHECK(nodes_[id].marks_expected == expected[id] && nodes_[id].marks_here == here[id]);
    for (uint32_t mark = nodes_[id].first_mark; mark != 0; mark = marks_[mark].next) {
      KVT_CHECK(marks_[mark].node == id);
      ++on_nodes;
    }
  }
  KVT_CHECK(on_nodes == marks);
}

}  // namespace kvtwin
