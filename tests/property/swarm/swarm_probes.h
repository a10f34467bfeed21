// Counts the situations that a swarm must reach.

#ifndef KVTWIN_TESTS_PROPERTY_SWARM_SWARM_PROBES_H_
#define KVTWIN_TESTS_PROPERTY_SWARM_SWARM_PROBES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/runtime/driver.h"
#include "tests/property/swarm/swarm.h"

namespace kvtwin::testing {

class ProbeObserver final : public Observer {
 public:
  ProbeObserver(const std::vector<CoreConfig>& engines, Probes* probes);

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

 private:
  struct Request {
    SessionId session{};
    bool launched = false;
    bool answered = false;
    uint32_t preempted = 0;
    uint32_t passes_left = 0;  // after its last entry
    bool swapped_out = false;  // since its preemption
    bool swapped_in = false;   // since it was admitted last
    // For a request that another engine prefilled: its KV is being received; its source was released.
    bool arrived = false, on_its_way = false, read = false;
    size_t source_pages = 0;
    bool has_prefix = false;  // of host pages
  };
  struct Engine {
    uint64_t done = 0, launched = 0;  // single steps
    uint64_t last_first = 0;
    std::map<TransferId, TransferKind> transfers;
    std::map<TransferId, std::set<PageId>> spilling;  // pages read by each spill in progress
    std::set<TransferId> from_disk;                   // loads in progress
    std::map<PageId, SessionId> writer;  // session of the request that a page was last allocated to
    std::map<uint32_t, SessionId> prefix_checkpoints;  // by number: session of its request
    std::set<PageId> host_copies;                      // host pages that a request has started with
    std::set<PageId> returned;                         // GPU pages that were swapped in
    std::set<PageId> loaded;                           // GPU pages that were loaded, and not allocated since
    std::set<RequestId> unanswered;                    // requests whose counts the backend has not reported

    void forget(TransferId transfer) {
      transfers.erase(transfer);
      spilling.erase(transfer);
      from_disk.erase(transfer);
    }
  };

  void hit(const std::string& name);
  void saw(const RequestReady& event, Engine* engine);
  void saw(const RequestCancelled& event, Engine* engine);
  void saw(const SessionHint&, Engine*) {}
  void saw(const StepDone& event, Engine* engine);
  void saw(const TransferDone& event, Engine* engine);
  void saw(const TransferFailed& event, Engine* engine);
  void saw(const Timer&, Engine*) {}
  void saw(const PagesTaken&, Engine*) {}
  void notify(const LaunchStep& command);
  void saw_compressions(const LaunchStep& command, Engine* engine);
  void saw_passes(const LaunchStep& command, const Engine& engine);
  void saw_formats(const LaunchStep& command);
  void saw_loaded(const LaunchStep& command, Engine* engine);
  void saw_host_copies(const LaunchStep& command, Engine* engine);
  void saw_return(const LaunchStep& command, const PlanEntry& entry, const Engine& engine);
  void saw_prefix_checkpoints(const LaunchStep& command, Engine* engine);
  static void check_tiers(const StartTransfer& command, const CoreConfig& config);
  void notify(const StartTransfer& command);
  void notify(const SetTimer&) {}
  void notify(const TokensEmitted&) {}
  void notify(const FinishRequest& command);
  void notify(const RejectRequest& command);
  void notify(const DropRequestState& command);
  void notify(const DropSessionState&) {}
  void notify(const HandOver& command);
  void notify(const SourceRead& command);
  bool recalling(const Engine& engine) const;

  const std::vector<CoreConfig> configs_;
  Probes* const probes_;
  std::vector<Engine> engines_;
  std::map<RequestId, Request> requests_;
  uint64_t events_ = 0;
  EngineId engine_now_{};
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_PROPERTY_SWARM_SWARM_PROBES_H_
