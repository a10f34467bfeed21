// DualCache keeps KV in int2 and int4 pages by tag (TriAxialKV, METHODS 4.6). The policy says which cells get
// how many bits and which pages there are (engine/policy/dual_pool.h); which cell then lies in which slot
// follows from that, and is worked out here.
//
//   * 2-bit cells wait in bf16 until they fill an int2 page, or until the prompt ends;
//   * a chunk attends to its own rows exactly, and to what came before as it was stored; then it is stored;
//   * a decoded cell is stored, in 4 bits, and read like the others.
//   * cells that age are packed again from what their int4 bytes say, before anything else of a step.
// Cells are read in order of position, whatever pages they are in: so attention depends on what is stored,
// not on where. Rows are rounded to bf16 first, as in PackedCache; with 4 bits for every tag both are the
// same, bit for bit.

#ifndef KVTWIN_ENGINE_CPU_DUAL_CACHE_H_
#define KVTWIN_ENGINE_CPU_DUAL_CACHE_H_

#include <map>
#include <memory>
#include <vector>

#include "engine/cpu/kv_cache.h"
#include "engine/cpu/packed_store.h"
#include "kernels/attention.h"

namespace kvtwin::cpu {

struct DualFormat {
  uint32_t pages_int2 = 0;  // the first so many of pages_gpu
  uint32_t group = 32;
  uint32_t step_tokens_max = 65536;
};

class DualCache final : public KvCache {
 public:
  // Wrong: no room for so many pages, or no such groups. REQUIRES: memory.pages_host == 0.
  static Result<std::unique_ptr<KvCache>> make(const KvMemory& memory, const LlmSpec& llm,
                                               const DualFormat& format);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, StepValues*) override {}
  void told(const Command& command) override;

  // Where a cell of a call is; page >= store().scratch(): it waits. For tests.
  struct Place {
    uint32_t page = 0;
    uint32_t slot = 0;
  };
  std::span<const Place> places(CallId call) const { return calls_.at(call).places; }
  const PackedStore& store() const { return store_; }

 private:
  struct Call {
    std::vector<Place> places;      // by position
    std::vector<uint32_t> waiting;  // positions, in slots 0, 1, ... of the staging page
    uint32_t staging = 0;
    PageId tail{};         // the int4 page that it fills
    uint32_t in_tail = 0;  // 0: none, or full
  };
  // What becomes of one row, or of what waits, once the entry's attention is done. In order.
  struct Action {
    enum class Kind : uint8_t { kStage, kPut, kMove, kPack } kind{};
    uint32_t row = 0;   // of the step; kMove: slot of the staging page
    PageId page{};      // kPut, kMove, kPack
    uint32_t slot = 0;  // kStage: of the staging page
  };
  struct Share {
    bool chunk = false;
    uint32_t row = 0, tokens = 0, context = 0, staging = 0;
    std::vector<kernels::ReadRun> runs;
    std::vector<kernels::AttentionRow> rows;
    std::vector<Action> actions;
  };
  // An entry's pages of this step, taken one by one.
  struct Grants {
    std::vector<PageId> pages;
    size_t next = 0;
  };

  DualCache(const KvMemory& memory, const LlmSpec& llm, const DualFormat& format, PackedStore store)
      : memory_(memory),
        llm_(llm),
        format_(format),
        rope_(rope_frequencies(llm)),
        store_(std::move(store)),
        pages_(memory.pages_gpu) {}

  bool is_int2(PageId page) const { return raw(page) < format_.pages_int2; }
  void adopt(const PlanEntry& entry, std::span<const PageId> pages);
  void requantise(std::span<const CellAgeing> ageings);
  void pack_again(std::span<const Place> from, PageId target);
  uint32_t take_staging();
  void place_rows(const LaunchStep& launch, uint32_t index, const PlanEntry& entry, Grants* grants,
                  Call* call, Share* share);
  void put_4(uint32_t position, Grants* grants, Call* call, Action action, Share* share);
  void place_waiting(Grants* grants, Call* call, Share* share);
  void take(PageId page);
  static void plan_history(const Call& call, uint32_t cells, Share* share);
  void perform(uint32_t layer, const Share& share, const float* k, const float* v);

  const KvMemory memory_;
  const LlmSpec llm_;
  const DualFormat format_;
  const RopeFrequencies rope_;
  PackedStore store_;
  std::map<CallId, Call> calls_;
  std::vector<std::vector<uint32_t>> pages_;  // positions, by slot
  std::vector<uint32_t> staging_free_;
  uint32_t staging_made_ = 0;
  std::vector<Share> shares_;  // of the step
  std::vector<float> values_;  // of the layer, rounded
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_DUAL_CACHE_H_
