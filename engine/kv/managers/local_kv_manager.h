// LocalKvManager is a KvManager whose requests stay on their engine. Unless a manager swaps, or has copies of
// cached prefixes on the host, no transfer moves its pages: the KV of a request is on this GPU or absent.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_LOCAL_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_LOCAL_KV_MANAGER_H_

#include "engine/base/check.h"
#include "engine/kv/managers/kv_manager.h"

namespace kvtwin {

class LocalKvManager : public KvManager {
 public:
  void abandon(RequestIndex) override {}
  void hand_over(RequestIndex) final { KVT_CHECK(!"hand-over of such pages is not built"); }
  void taken(const PagesTaken&) final {}
  Delivery deliver(RequestIndex, const Transfer&, bool) override {
    KVT_CHECK(!"transfers of such pages are not built");
    return {};
  }
  void start_copies_down() override {}
  void launch_ended(const Launch&) final {}
  bool pages_return() const override { return false; }
  bool idle() const final { return !pages_return(); }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_LOCAL_KV_MANAGER_H_
