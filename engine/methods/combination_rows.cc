#include "engine/methods/combination_rows.h"

namespace kvtwin {
namespace {

using enum Choice;
using enum Support;
using namespace when;

// Budgets, layouts and scorers: when and how KV entries are dropped.
constexpr CombinationRow kPolicyRows[] = {
    {kEverywhere,
     kRefused,
     {kLayout, kBudget},
     [](Given c) { return c.ring() && !c.budget.fixes_ring; },
     "layout {layout} has a fixed number of pages per request, which budget {budget} does not say",
     "choose budget uniform or head_masks"},
    {kEverywhere,
     kRefused,
     {kLayout, kBudget},
     [](Given c) { return !c.ring() && c.budget.keeps_all && c.drops(); },
     "layout {layout} has nothing to do while budget {budget} keeps every KV entry",
     "choose layout paged, or another budget"},
    {kEverywhere,
     kRefused,
     {kScorer, kBudget},
     [](Given c) { return c.ranks() && at_no_time(c); },
     "budget {budget} drops KV entries, but scorer {scorer} ranks nothing",
     "choose a scorer, or budget all"},
    {kEverywhere,
     kRefused,
     {kLayout, kBudget},
     [](Given c) { return c.ranks() && c.layout.slot_retention == SlotRetention::kAll; },
     "budget {budget} drops KV entries, but layout {layout} has no way to let go of them",
     "choose layout compact, ragged, slot_mask or page_mask"},
    {kEverywhere,
     kNotBuilt,
     {kPlacement, kLayout, kPrefixCache},
     [](Given c) {
       return c.ranks() && c.in_place() && c.prefix_cache && c.placement.uses_host &&
              !c.placement.uses_resident;
     },
     "placement {placement} copies whole pages of a cached prefix, which layout {layout} does not keep",
     "set prefix_cache: false, layout: compact or ragged, or placement: gpu and preemption: recompute"},
    {kEverywhere,
     kNotBuilt,
     {kDisk, kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && c.has_disk; },
     "the disk tier has {disk} pages for pages by position, but what layout {layout} has left of a prefix is "
     "copied to the host alone",
     "set prefix_cache: false, or 0 pages"},
    {kEverywhere,
     kRefused,
     {kLayout, kIdentity},
     [](Given c) { return c.ranks() && c.in_place() && c.identity.shares_across_sessions; },
     "layout {layout} drops KV entries of shared prefixes, which would leak one session's view into another",
     "set identity: session or none"},
    {kEverywhere,
     kRefused,
     {kLayout, kBudget},
     [](Given c) { return c.ranks() && c.in_place() && !c.budget.known_at_admission(); },
     "budget {budget} gives heads different counts, but layout {layout} drops a token from all heads at once",
     "choose layout ragged, or budget uniform or ratio"},
    {kEverywhere,
     kRefused,
     {kLayout, kBudget},
     [](Given c) { return c.ranks() && !c.layout.has_groups && !c.budget.heads_even; },
     "budget {budget} gives heads different counts, but layout {layout} has one page table for all of them",
     "choose layout ragged, or budget uniform or ratio"},
    {kEverywhere,
     kRefused,
     {kScorer, kLayout},
     [](Given c) { return c.ranks() && at_turns(c) && !c.in_place(); },
     "scorer {scorer} works at the start of a turn, on the prefix that a request begins with, which layout "
     "{layout} does not share",
     "choose layout page_mask or slot_mask"},
    {kEverywhere,
     kRefused,
     {kScorer, kPrefixCache},
     [](Given c) { return c.ranks() && at_turns(c) && !c.prefix_cache; },
     "scorer {scorer} works at the start of a turn, on the prefix that a request begins with, but "
     "prefix_cache is false",
     "set it, or choose another compression trigger"},
    {kEverywhere,
     kRefused,
     {kScorer, kBudget},
     [](Given c) { return c.ranks() && at_decodes(c) && !c.budget.known_at_admission(); },
     "scorer {scorer} works at decode steps, where budget {budget} does not say when there are too many KV "
     "entries",
     "choose budget uniform, ratio or pyramid"},
    {kEverywhere,
     kRefused,
     {kScorer, kBudget},
     [](Given c) { return c.ranks() && c.budget.reserves && !at_chunks(c); },
     "scorer {scorer} needs the whole prompt before it drops anything, but budget {budget} reserves pages "
     "only for retained KV entries",
     "choose a scorer that works at chunk ends, or budget ratio"},
    {kEverywhere,
     kNotBuilt,
     {kScorer, kLayout},
     [](Given c) { return c.ranks() && at_chunks(c) && c.in_place(); },
     "layout {layout} drops KV entries where they are once the prompt is known, but scorer {scorer} works at "
     "chunk ends",
     "choose layout compact or ragged"},

    {kEverywhere,
     kNotBuilt,
     {kScorer, kBudget},
     [](Given c) { return c.ranks() && at_chunks(c) && c.scorer.repeats && c.budget.known_at_admission(); },
     "budget {budget} drops KV entries in the step that computes a chunk, but scorer {scorer} repeats the "
     "chunk "
     "in later steps",
     "choose budget top_across_layers or top_per_layer, or compression_trigger: prompt_end"},

    // Prefix checkpoints: what is left of a prefix where KV entries have moved.
    {kEverywhere,
     kRefused,
     {kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && !c.moves() && c.layout.keeps_phase; },
     "layout {layout} overwrites KV entries, so a cached prefix cannot be reused",
     "set prefix_cache: false, or layout: compact"},
    {kEverywhere,
     kRefused,
     {kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && !c.layout.keeps_phase; },
     "layout {layout} rotates KV entries, so a cached prefix cannot be reused",
     "set prefix_cache: false, or layout: compact"},
    {kEverywhere,
     kRefused,
     {kScorer, kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && !at_chunks(c); },
     "layout {layout} moves KV entries when scorer {scorer} has seen the whole prompt, so what is left of a "
     "prefix depends on what follows it and cannot be reused",
     "set prefix_cache: false, or a scorer that works at chunk ends"},
    {kEverywhere,
     kRefused,
     {kScorer, kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && c.causality != Causality::kPrefixClosed; },
     "scorer {scorer} keeps KV entries by what follows them, so what layout {layout} has left of a prefix "
     "cannot be reused",
     "set prefix_cache: false, scorer_options.window_closed: true where the scorer has a window, or another "
     "scorer"},
    {kEverywhere,
     kNotBuilt,
     {kRetrieval, kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && c.chooses(); },
     "retrieval {retrieval} summarises pages, and the summaries of a compressed prefix are not copied yet",
     "set retrieval: all, or prefix_cache: false"},
    {kEverywhere,
     kNotBuilt,
     {kPrecision, kLayout, kPrefixCache},
     [](Given c) { return checkpoints(c) && c.precision.exact != ExactTokens::kNone; },
     "precision {precision} keeps a request's newest KV entries outside its pages, which a compressed prefix "
     "would lack",
     "set prefix_cache: false, or another precision"},

    // Formats.
    {kEverywhere,
     kRefused,
     {kPrecision, kLayout},
     [](Given c) { return two_bits(c) && c.layout.needs_page_1; },
     "precision {precision} packs keys in groups of tokens, but layout {layout} has pages of one token",
     "set layout: page_mask, or precision: int4"},
    // KV entries may move before they are packed; packed keys share scales with their neighbours.
    {kEverywhere,
     kRefused,
     {kPrecision, kScorer, kLayout},
     [](Given c) { return two_bits(c) && !at_no_time(c) && !at_chunks(c) && !c.layout.keeps_slots; },
     "layout {layout} moves entries after precision {precision} has packed them in groups, which would "
     "quantise them twice",
     "use a layout that keeps slots (page_mask), a scorer that works at chunk ends, or precision int4"},
    {kEverywhere,
     kNotBuilt,
     {kDisk, kPrecision},
     [](Given c) { return c.precision.by_tag && c.has_disk; },
     "the disk tier has {disk} pages for pages by position, but prefixes in precision {precision} are copied "
     "to "
     "the host alone",
     "set 0 pages, or precision: int4"},
    {kEverywhere,
     kRefused,
     {kPrecision, kLayout},
     [](Given c) { return c.precision.by_tag && c.in_place(); },
     "precision {precision} fills pages with entries of one format, which holds tokens from far apart, so "
     "dropping would hardly ever empty one; budget {budget} and layout {layout} move or drop them",
     "set budget: all and layout: paged, or precision: int4, which packs what is left"},
    {kEverywhere,
     kRefused,
     {kPrecision, kBudget, kLayout},
     [](Given c) { return c.precision.by_tag && c.drops(); },
     "precision {precision} fills pages with entries of one format, of all heads, but what is left is other "
     "tokens in each head, and so other numbers of either format (it would need quotas per format); budget "
     "{budget} and layout {layout} move or drop them",
     "set budget: all and layout: paged, or precision: int4, which packs what is left"},
    {kEverywhere,
     kRefused,
     {kPrecision, kRetrieval},
     [](Given c) { return c.precision.by_tag && c.chooses(); },
     "precision {precision} fills pages with entries of positions far apart, which retrieval {retrieval} "
     "cannot choose among",
     "set retrieval: all, or precision: int4"},
    {kEverywhere,
     kNotBuilt,
     {kPageOrder, kPrecision},
     [](Given c) { return c.precision.by_tag && c.oldest_first; },
     "page_order OLDEST_FIRST is one queue of pages, precision {precision} has two pools",
     "set page_order: LOWEST_FIRST"},
    {kEverywhere,
     kRefused,
     {kPrecision, kPrefixCache},
     [](Given c) { return c.precision.by_tag && c.requantises && !c.prefix_cache; },
     "precision_options.ageing requantise works on cached prefixes when a turn starts, and prefix_cache is "
     "false",
     "set prefix_cache: true, or precision_options.ageing: ignore"},
    {kEverywhere,
     kRefused,
     {kPrecision, kIdentity, kPrefixCache},
     [](Given c) {
       return c.precision.by_tag && c.prefix_cache && c.identity.shares_across_sessions && c.bits_by_age;
     },
     "precision_options.tag_map gives bits by the age of a turn, so a prefix's bits depend on what follows "
     "it, and identity {identity} would show one session's to another",
     "set identity: session, or precision_options.ageing: forecast"},

    // Who may see what; retrieval, tiers and swap.
    {kEverywhere,
     kRefused,
     {kScorer, kIdentity},
     [](Given c) { return c.causality == Causality::kSuffixDependent && c.identity.shares_across_sessions; },
     "scorer {scorer} keeps entries by what follows them, which would leak one session's view into another",
     "set identity: session or none"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kPlacement},
     [](Given c) { return c.retrieval.needs_resident() && !c.placement.uses_resident; },
     "retrieval {retrieval} recalls pages from the host, but placement {placement} keeps none of a running "
     "request there",
     "set placement: resident, or retrieval: quest"},
    {kEverywhere,
     kRefused,
     {kPlacement, kRetrieval},
     [](Given c) { return c.placement.uses_resident && !c.retrieval.needs_resident(); },
     "placement {placement} leaves a request only part of its pages, but retrieval {retrieval} reads all of "
     "them on the gpu",
     "set placement: gpu, or a retrieval that recalls (freekv)"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) { return recalls_retained(c) && c.in_place(); },
     "retrieval {retrieval} recalls pages of all heads, of which layout {layout} leaves pages with holes",
     "set layout: compact, or retrieval: quest with placement: gpu, or budget: all with layout: paged"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) {
       return recalls_retained(c) && !c.in_place() && c.layout.keeps_phase && !compacts_all_heads(c);
     },
     "retrieval {retrieval} recalls pages of all heads, of which layout {layout} has one table for each "
     "group of them",
     "set layout: compact, or retrieval: quest with placement: gpu, or budget: all with layout: paged"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) { return recalls_retained(c) && !c.layout.keeps_phase; },
     "retrieval {retrieval} recalls pages of all heads, of which layout {layout} turns the keys when they "
     "move",
     "set layout: compact, or retrieval: quest with placement: gpu, or budget: all with layout: paged"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kScorer},
     [](Given c) { return recalls_retained(c) && !at_prompt_end(c); },
     "retrieval {retrieval} recalls pages of all heads that never change, but scorer {scorer} drops entries "
     "more than once",
     "choose a scorer that works at the prompt's end, or retrieval: quest with placement: gpu"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout, kPrefixCache},
     [](Given c) { return recalls_retained(c) && c.prefix_cache; },
     "layout {layout} moves entries when scorer {scorer} has seen the whole prompt, so its pages on the host "
     "cannot be reused",
     "set prefix_cache: false"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) { return recalls_retained(c) && c.retrieval.joins_heads(); },
     "retrieval {retrieval} factorises the keys of a token in all heads together, but each head has entries "
     "of its own tokens left",
     "set retrieval: freekv, arkvale or quest, or budget: all with layout: paged"},
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) { return recalls_retained(c) && c.retrieval.learns_columns(); },
     "retrieval {retrieval} learns its columns from all rows of the prompt, but each head has entries of its "
     "own tokens left",
     "set retrieval: freekv, arkvale or quest, or budget: all with layout: paged"},
    // A page is summarised when its KV entries no longer move. The summary stays valid when KV entries are
    // dropped later: a bound over more keys is still a bound.
    {kEverywhere,
     kRefused,
     {kRetrieval, kLayout},
     [](Given c) { return c.chooses() && c.ring(); },
     "retrieval {retrieval} chooses whole pages, but layout {layout} overwrites them KV entry by KV entry",
     "set layout: compact, ragged or page_mask, or retrieval: all"},
    {kEverywhere,
     kNotBuilt,
     {kRetrieval, kScorer, kLayout},
     [](Given c) { return c.chooses() && c.moves() && at_decodes(c); },
     "scorer {scorer} moves entries while the request decodes, and no page's summary is rebuilt for "
     "retrieval {retrieval}",
     "choose a scorer that works at chunk or prompt ends, or retrieval: all"},
    {kEverywhere,
     kNotBuilt,
     {kRetrieval, kPrecision},
     [](Given c) { return c.precision.packed() && c.retrieval.needs_resident() && !recalls_packed(c); },
     "packed pages are recalled only where a method recalls whole pages, budget all keeps their entries and "
     "the format packs token by token; retrieval {retrieval}, budget {budget} and precision {precision} are "
     "not built together",
     "set precision: bf16; or retrieval: freekv or arkvale, precision: fp8, int4 or fp4, and budget: all; or "
     "retrieval: quest, whose pages stay on the gpu"},
    {kEverywhere,
     kRefused,
     {kPreemption, kPlacement},
     [](Given c) { return c.swaps && (c.placement.uses_resident || !c.placement.uses_host); },
     "preemption swap copies a request's pages to the host tier, which placement {placement} does not keep "
     "for them",
     "set placement: host, or preemption: recompute"},
    {kEverywhere,
     kNotBuilt,
     {kPreemption, kPrecision},
     [](Given c) { return c.swaps && !c.precision.by_tag && c.precision.exact != ExactTokens::kNone; },
     "preemption swap copies pages, but precision {precision} keeps a request's newest entries outside them",
     "set preemption: recompute, or another precision"},
    {kEverywhere,
     kRefused,
     {kDisk, kPlacement},
     [](Given c) { return c.has_disk && (c.placement.uses_resident || !c.placement.uses_host); },
     "the disk tier has {disk} pages behind a host tier that placement {placement} does not keep for cached "
     "prefixes",
     "set placement: host, or 0 pages"},
    {kEverywhere,
     kRefused,
     {kDisk, kPrefixCache},
     [](Given c) { return c.has_disk && !c.prefix_cache; },
     "the disk tier has {disk} pages for cached prefixes, but there is no prefix cache",
     "set prefix_cache: true, or 0 pages"},
};

}  // namespace

std::span<const CombinationRow> policy_rows() { return kPolicyRows; }

}  // namespace kvtwin
