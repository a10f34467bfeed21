// The policy side of the eight axes (docs/design/scheduler-and-kv-managers.md#axes): integers only. Values
// (scores, packed bytes) belong to the backends, prices to models/.
//
// Scorer, budget and identity are small interfaces, because their answers depend on options, counts or
// sessions; the other axes are traits. The policies of an axis, the identity included, are the rows of
// axis_<name>.cc: name, description, traits. To add a policy: one row, and one table test.

#ifndef KVTWIN_ENGINE_METHODS_AXES_H_
#define KVTWIN_ENGINE_METHODS_AXES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/partition_kind.h"
#include "engine/base/units.h"
#include "engine/methods/config.h"
#include "engine/methods/probe_passes.h"
#include "engine/methods/traits.h"

namespace kvtwin {

// Whether the KV entries retained of a prefix depend on what follows it. This determines who may share them
// (docs/design/methods/composition.md#causality).
enum class Causality : uint8_t { kPrefixClosed, kSuffixDependent };

// How important is a KV entry? The policy side defines when to score and what a step must capture.
class Scorer {
 public:
  virtual ~Scorer() = default;
  virtual CompressionTrigger compression_trigger() const = 0;
  virtual Causality causality() const = 0;
  // Passes of probe tokens between the prompt and its compression; the first `sinks` tokens are retained.
  virtual ProbePasses passes(uint32_t sinks) const = 0;
  virtual bool needs_all_layers() const = 0;  // a threshold over layers: staging must hold all layers
};

// How many KV entries may a head group retain, and when is that known?
class Budget {
 public:
  virtual ~Budget() = default;
  virtual bool keeps_all() const = 0;
  // The counts follow from lengths alone; otherwise the backend reports them (CompressionOutcome).
  virtual bool known_at_admission() const = 0;
  // Admission reserves the pages of the retained KV entries, so pages are never freed by compression
  // (docs/design/methods/tangram.md#reservation).
  virtual bool reserves() const = 0;
  // How many of the first `ranked` ranked KV entries `group` retains; never increases by more than `ranked`
  // does. If counts are not known: the largest possible number.
  virtual uint32_t quota(uint32_t group, uint32_t ranked) const = 0;
};

// Which requests may share which state?
class Identity {
 public:
  virtual ~Identity() = default;
  // The namespace of a request's prefixes; nullopt: its prefixes are never cached.
  virtual std::optional<uint64_t> name_space(SessionId session) const = 0;
  // Number of sessions whose state (a query memory) the backend retains between requests; 0: none.
  virtual uint32_t session_states_max() const = 0;
};

struct PolicyAxes {
  std::unique_ptr<Scorer> scorer;
  std::unique_ptr<Budget> budget;
  LayoutTraits layout;
  PrecisionTraits precision;
  PlacementTraits placement;
  RetrievalTraits retrieval;
  PartitionKind partition = PartitionKind::kUniform;
  std::unique_ptr<Identity> identity;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_AXES_H_
