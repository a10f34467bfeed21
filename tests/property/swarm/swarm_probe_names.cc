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
  return named(
      {"a compression with known counts", "a compression with counts from the backend", "a staged chunk",
       "a compression while two steps are in flight", "a preempted request was compressed again",
       "a page full of dropped KV entries was freed", "a prefix with dropped pages was reused",
       "pages of several groups in one coalesced step", "a compression between decode steps",
       "a request was cancelled before its counts were reported", "a compression at the start of a turn"});
}

Probes format_probes() {
  return named({"a group filled an int2 page", "2-bit KV entries went to int4",
                "a prompt's end flushed waiting entries", "a prefix in pages of two formats was reused",
                "a prefix was requantised", "a request was preempted", "a request was preempted twice",
                "coalesced steps got pages in advance", "coalesced steps were ended by an arrival",
                "end-of-sequence ended coalesced steps", "cancelled with two steps in flight",
                "a prefix from a request of the same step", "a prefix from another session",
                "no page free and none to evict", "rejected: larger than the pool",
                "a preempted request found its prefix again"});
}

Probes format_swap_probes() {
  return named({"a request was swapped out", "pages of a request were swapped in",
                "a swapped-in request continued to decode", "a request was swapped out within its prompt",
                "a request was preempted twice", "a swap-out failed", "a swap-in failed",
                "a swap-out while a step was in flight", "the host tier is full",
                "a preempted request was computed again", "a group filled an int2 page",
                "a prefix was requantised", "coalesced steps got pages in advance"});
}

Probes swap_probes() {
  return named({"a request was swapped out", "pages of a request were swapped in",
                "a swapped-in request found pages in the index", "a swapped-in request continued to decode",
                "a partly filled page was swapped in", "a request was preempted twice",
                "a swapped-out request was cancelled", "a swap-out failed", "a swap-in failed",
                "a request arrived during a swap-out", "a swap-out while a step was in flight",
                "the host tier is full", "no page free and none to evict", "a load arrived",
                "end-of-sequence ended coalesced steps", "coalesced steps got pages in advance"});
}

Probes retention_swap_probes() {
  return named({"a request was swapped out", "pages of a request were swapped in",
                "a request was swapped out within its prompt", "a compressed request was swapped in",
                "a swapped-in request was compressed again", "a swapped-in request lists dropped pages",
                "a swapped-in request continued to decode", "a request was preempted twice",
                "a preempted request was computed again", "a swapped-out request was cancelled",
                "a swap-out failed", "a swap-in failed", "a swap-out while a step was in flight",
                "a compression with counts from the backend", "a compression between decode steps",
                "a staged chunk", "coalesced steps got pages in advance"});
}

Probes resident_probes() {
  return named({"a prefix of host pages was reused", "a prefix of host pages from another session",
                "a preempted request found its prefix again", "a request with resident pages was preempted",
                "a request with a prefix of host pages was preempted", "a load arrived", "a load failed",
                "two loads at once", "cancelled during a load, before its first step",
                "a load while a step was in flight", "full resident pages took only a host page",
                "a prompt in chunks", "coalesced steps got pages in advance",
                "coalesced steps were ended by an arrival", "end-of-sequence ended coalesced steps",
                "a host page was reallocated", "rejected: larger than the pool",
                "a prompt was compressed before its resident pages",
                "a prompt was compressed to fewer host pages"});
}

Probes disk_probes() {
  return named({"a spill arrived", "a spill failed", "a load from the disk", "a load from the disk failed",
                "a load read pages that were being spilled", "the disk tier is full", "the host tier is full",
                "a disk of one page was used", "a request was swapped out",
                "coalesced steps got pages in advance", "two loads at once",
                "cancelled during a load, before its first step", "no page free and none to evict"});
}

Probes cluster_probes() {
  return named({"a request was handed over", "a prompt arrived", "a prompt did not arrive",
                "all of a prompt was there already", "part of a prompt was there already",
                "cancelled while its prompt was transferred", "an arrived request was preempted",
                "a request was preempted", "a load arrived", "coalesced steps were ended by an arrival",
                "rejected: larger than the pool"});
}

Probes prefix_checkpoint_probes() {
  return named(
      {"a prefix checkpoint was taken", "a prefix checkpoint with counts from the backend",
       "a request started with a prefix checkpoint",
       "a request started with another session's prefix checkpoint",
       "a request continued after its own prefix checkpoint",
       "a request decoded after its own prefix checkpoint",
       "a preempted request started with a prefix checkpoint", "a prefix checkpoint's number was reused",
       "a prefix checkpoint shared a page with the one before",
       "a prefix checkpoint was taken with two steps in flight", "a request was preempted twice",
       "a staged chunk", "coalesced steps got pages in advance", "coalesced steps were ended by an arrival",
       "no page free and none to evict", "cancelled while it ran", "end-of-sequence ended coalesced steps"});
}

Probes checkpoint_host_probes() {
  return named(
      {"an offload arrived", "an offload failed", "a load arrived", "a load failed", "two loads at once",
       "cancelled during a load, before its first step", "a load while a step was in flight",
       "a prefix in pages from the host was reused", "a prefix checkpoint with counts from the backend",
       "a request continued after its own prefix checkpoint",
       "a preempted request started with a prefix checkpoint", "a prefix checkpoint's number was reused",
       "a request was swapped out", "a staged chunk", "a request was preempted twice",
       "the host tier is full", "coalesced steps got pages in advance", "no page free and none to evict"});
}

Probes format_host_probes() {
  return named({"an offload arrived", "an offload failed", "a load arrived", "a load failed",
                "two loads at once", "cancelled during a load, before its first step",
                "a prefix in pages of two formats was reused", "a prefix in pages from the host was reused",
                "a prefix was requantised", "a request was swapped out", "a request was preempted twice",
                "the host tier is full", "coalesced steps got pages in advance",
                "no page free and none to evict"});
}

Probes eviction_probes() {
  return named({"a request was preempted", "a load arrived", "a prefix from another session",
                "a request was handed over", "no page free and none to evict"});
}

Probes pass_probes() {
  return named({"a pass with decodes", "a pass with chunks", "a pass of all of a step's tokens",
                "a pass above the step's budget", "a decode after the pass that its step begins with",
                "a pass with two steps in flight", "a preempted request with passes left",
                "a request ended with passes left", "a compression with known counts",
                "a compression with counts from the backend", "a preempted request was compressed again",
                "a prompt was compressed before its resident pages"});
}

Probes plain_probes() {
  return named({"a request of no output",
                "a request was preempted",
                "a request was preempted twice",
                "a preempted request found its prefix again",
                "a preemption during a transfer",
                "a request arrived after a preempted one",
                "cancelled before its first step",
                "cancelled while it ran",
                "cancelled during a load, before its first step",
                "cancelled after it was answered",
                "cancelled with two steps in flight",
                "a load arrived",
                "a load failed",
                "an offload arrived",
                "an offload failed",
                "two loads at once",
                "two steps in flight",
                "coalesced steps were ended by an arrival",
                "a hundred coalesced steps",
                "end-of-sequence ended coalesced steps",
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
                "coalesced steps got pages in advance",
                "full resident pages took only a host page",
                "a request with resident pages was preempted"});
}

}  // namespace

Probes all_probes(uint64_t last) {
  if (last >= kFormatHostSeeds) return format_host_probes();
  if (last >= kCheckpointHostSeeds) return checkpoint_host_probes();
  if (last >= kFormatSwapSeeds) return format_swap_probes();
  if (last >= kCheckpointRoomSeeds) return prefix_checkpoint_probes();
  if (last >= kPassSeeds) return pass_probes();
  if (last >= kEvictionSeeds) return eviction_probes();
  if (last >= kDiskSeeds) return disk_probes();
  if (last >= kResidentSeeds) return resident_probes();
  if (last >= kRetentionSwapSeeds) return retention_swap_probes();
  if (last >= kSwapSeeds) return swap_probes();
  if (last >= kClusterSeeds) return cluster_probes();
  if (last >= kPrefixCheckpointSeeds) return prefix_checkpoint_probes();
  if (last >= kFormatSeeds) return format_probes();
  if (last >= kRetentionSeeds) return retention_probes();
  return plain_probes();
}

}  // namespace kvtwin::testing
