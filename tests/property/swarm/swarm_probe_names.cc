// The situations that each family of seeds must reach.

#include <initializer_list>

#include "tests/property/swarm/swarm.h"
#include "tests/property/swarm/swarm_probes.h"

namespace kvtwin::testing {
namespace {

// Each name with a count of zero.
Probes named(std::initializer_list<const char*> names) {
  Probes probes;
  for (const char* const name : names) probes[name] = 0;
  return probes;
}

Probes retention_probes() {
  return named({"a compression with known counts", "a compression that the backend counts", "a staged chunk",
                "a compression while two steps are in flight", "a preempted request was compressed again",
                "a page full of dropped KV entries was freed", "a prefix with holes was reused",
                "pages of several groups in one step of a stretch", "a compression between decode steps",
                "a request was cancelled before its counts came", "a compression at the start of a turn"});
}

Probes format_probes() {
  return named({"a group filled an int2 page", "2-bit KV entries spilled to int4",
                "a prompt's end flushed what waited", "a prefix in pages of two formats was reused",
                "a prefix was requantised", "a request was preempted", "a request was preempted twice",
                "a stretch got pages ahead", "a stretch was cut by an arrival",
                "end-of-sequence ended a stretch", "cancelled with two steps in flight",
                "a prefix from a request of the same step", "a prefix from another session",
                "no page free and none to evict", "rejected: larger than the pool",
                "a preempted request found its prefix again"});
}

Probes swap_probes() {
  return named({"a request was demoted", "pages of a demoted request came back",
                "a demoted request found pages in the index", "a demoted request came back to decode",
                "a partly filled page came back", "a request was preempted twice",
                "a request that was sent away was cancelled", "a request's demotion failed",
                "a request's return failed", "a request arrived while another was on its way to the host",
                "a demotion while a step was in flight", "the host tier is full",
                "no page free and none to evict", "a recall arrived", "end-of-sequence ended a stretch",
                "a stretch got pages ahead"});
}

Probes resident_probes() {
  return named({"a prefix of homes was reused", "a prefix of homes from another session",
                "a preempted request found its prefix again", "a request with an arena was preempted",
                "a request with a prefix of homes was preempted", "a recall arrived", "a recall failed",
                "two recalls at once", "cancelled while a recall was under way, before its first step",
                "a recall while a step was in flight", "a full arena took only a host page",
                "a prompt in chunks", "a stretch got pages ahead", "a stretch was cut by an arrival",
                "end-of-sequence ended a stretch", "a home was given again", "rejected: larger than the pool",
                "a prompt was cut before its arena", "a prompt was cut to fewer homes"});
}

Probes disk_probes() {
  return named({"a spill arrived", "a spill failed", "a recall from the disk",
                "a recall from the disk failed", "a recall reads what is being spilled",
                "the disk tier is full", "the host tier is full", "a disk of one page was used",
                "a request was demoted", "a stretch got pages ahead", "two recalls at once",
                "cancelled while a recall was under way, before its first step",
                "no page free and none to evict"});
}

Probes cluster_probes() {
  return named({"a request was handed over", "a prompt arrived", "a prompt did not arrive",
                "all of a prompt was there already", "part of a prompt was there already",
                "cancelled while its prompt was on its way", "an arrived request was preempted",
                "a request was preempted", "a recall arrived", "a stretch was cut by an arrival",
                "rejected: larger than the pool"});
}

Probes prefix_checkpoint_probes() {
  return named(
      {"a prefix checkpoint was taken", "a prefix checkpoint of counts that the backend said",
       "a request began with a prefix checkpoint", "a request began with another session's prefix checkpoint",
       "a request went on behind its own prefix checkpoint",
       "a request decoded behind its own prefix checkpoint",
       "a preempted request began with a prefix checkpoint", "a prefix checkpoint's number was given again",
       "a prefix checkpoint shared a page with the one before",
       "a prefix checkpoint was taken with two steps in flight", "a request was preempted twice",
       "a staged chunk", "a stretch got pages ahead", "a stretch was cut by an arrival",
       "no page free and none to evict", "cancelled while it ran", "end-of-sequence ended a stretch"});
}

Probes eviction_probes() {
  return named({"a request was preempted", "a recall arrived", "a prefix from another session",
                "a request was handed over", "no page free and none to evict"});
}

Probes plain_probes() {
  return named({"a request of no output",
                "a request was preempted",
                "a request was preempted twice",
                "a preempted request found its prefix again",
                "a preemption while a transfer was under way",
                "a request arrived behind a preempted one",
                "cancelled before its first step",
                "cancelled while it ran",
                "cancelled while a recall was under way, before its first step",
                "cancelled after its answer",
                "cancelled with two steps in flight",
                "a recall arrived",
                "a recall failed",
                "a demotion arrived",
                "a demotion failed",
                "two recalls at once",
                "two steps in flight",
                "a stretch was cut by an arrival",
                "a stretch of a hundred steps",
                "end-of-sequence ended a stretch",
                "rejected: longer than the window",
                "rejected: larger than the pool",
                "rejected: empty prompt",
                "no page free and none to evict",
                "the host tier is full",
                "a pool of one page served a request",
                "a prompt in chunks",
                "a prefix from another session",
                "a prefix from a request of the same step",
                "a padded step",
                "a stretch got pages ahead",
                "a full arena took only a host page",
                "a request with an arena was preempted"});
}

}  // namespace

Probes all_probes(uint64_t last) {
  if (last >= kEvictionSeeds) return eviction_probes();
  if (last >= kDiskSeeds) return disk_probes();
  if (last >= kResidentSeeds) return resident_probes();
  if (last >= kSwapSeeds) return swap_probes();
  if (last >= kClusterSeeds) return cluster_probes();
  if (last >= kPrefixCheckpointSeeds) return prefix_checkpoint_probes();
  if (last >= kFormatSeeds) return format_probes();
  if (last >= kRetentionSeeds) return retention_probes();
  return plain_probes();
}

}  // namespace kvtwin::testing
