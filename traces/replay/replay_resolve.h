// The second half of IdentityStore: converts identities as they were read to runs over units.
//
// ChainTable numbers units by their content and everything before them. SessionResolver handles one session
// after the other, because outputs are looked up in later requests of the same session.

#ifndef KVTWIN_TRACES_REPLAY_REPLAY_RESOLVE_H_
#define KVTWIN_TRACES_REPLAY_REPLAY_RESOLVE_H_

#include <unordered_map>

#include "traces/replay/replay_identity.h"

namespace kvtwin {

class ChainTable {
 public:
  static constexpr uint64_t kRoot = UINT64_MAX;

  // The first of `length` numbers for the consecutive units of `key` from `offset` on that follow unit
  // `parent`. REQUIRES: the same length for the same key and offset.
  uint64_t number(uint64_t parent, const Hash128& key, uint64_t offset, uint64_t length);

 private:
  struct Place {
    uint64_t parent;
    Hash128 key;
    uint64_t offset;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct PlaceHash {
    size_t operator()(const Place& place) const;
  };
  std::unordered_map<Place, uint64_t, PlaceHash> first_;  // for look-up only, never iterated
  uint64_t next_ = 0;
};

class SessionResolver {
 public:
  // Keeps both pointers.
  SessionResolver(const IdentityStore* store, ReplayTable* table);
  Result<void> session(uint32_t index);

 private:
  // Tokens [offset, offset + tokens) of a span, at position `at` of the prompt.
  struct Piece {
    const SpanInfo* span;
    uint32_t at;
    uint32_t offset;
    uint32_t tokens;
  };
  struct Word {
    Hash128 key;
    uint64_t value;
    friend bool operator==(const Word&, const Word&) = default;
  };
  struct Prompt {
    uint32_t run_first = 0, run_count = 0;      // in runs_
    uint32_t piece_first = 0, piece_count = 0;  // in pieces_
    uint32_t units = 0;                         // covered by identity, without the tail of a ceil key
    bool by_key = false;
    // Every whole block (token, for spans) is known, and it ends without a hashed tail.
    bool extendable = false;
  };

  void key_prompt(const RequestIdentity& request, const TableNode& node, Prompt* prompt);
  void key_run(const KeyRun& run, uint32_t blocks, bool tail, uint32_t tail_units);
  void direct_run(v1::Scope scope, int64_t id, uint32_t blocks, bool tail, uint32_t tail_units);
  Result<void> list(uint32_t session, uint32_t first, uint32_t count, uint32_t tokens_max, size_t begin);
  void push_piece(const SpanInfo* span, uint32_t offset, uint32_t tokens, size_t begin);
  bool unit_content(const Piece* piece, const Piece* end, uint32_t at, Hash128* content);
  void chain(const Piece* begin, const Piece* end, uint32_t tokens);
  Word word_at(const Prompt& prompt, uint32_t position) const;
  TableRun unit_at(const Prompt& prompt, uint32_t unit) const;
  bool extends(const Prompt& later, const Prompt& prompt, uint32_t length) const;
  void finish_key(uint32_t index, uint32_t count, const TableNode& node);
  Result<void> finish_spans(uint32_t session, uint32_t index, const TableNode& node);
  void push_run(uint64_t first, uint64_t count, RunScope scope);

  const IdentityStore& store_;
  ReplayTable& table_;
  uint32_t unit_;
  uint32_t ratio_ = 1;  // units per hash block
  ChainTable chains_;
  std::map<int64_t, uint64_t> far_ids_;  // ids >> 20 that do not fit -> numbers from 2^31 on
  // For the current session.
  uint32_t session_ = 0;
  std::vector<Prompt> prompts_;
  std::vector<Piece> pieces_;
  std::vector<TableRun> runs_;
  // For the current request.
  size_t run_begin_ = 0;
  uint64_t parent_ = ChainTable::kRoot;
  bool everywhere_ = true;
};

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_REPLAY_REPLAY_RESOLVE_H_
