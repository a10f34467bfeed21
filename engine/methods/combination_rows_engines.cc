#include "engine/methods/combination_rows.h"

namespace kvtwin {
namespace {

using enum Choice;
using enum Support;
using namespace when;

// What both engines, which compute values, cannot.
constexpr CombinationRow kEngineRows[] = {
    {kEngines,
     kRefused,
     {kLayout, kScorer},
     [](Given c) { return c.ring() && !c.scorer.by_position; },
     "layout {layout} keeps sinks and the newest tokens, which is not what scorer {scorer} says",
     "choose scorer streaming_llm, or layout compact"},
    {kEngines,
     kNotBuilt,
     {kPrecision, kLayout, kRetrieval},
     [](Given c) { return c.entry_lists() && two_bits(c); },
     "precision {precision} packs keys in groups of tokens, which layout {layout} would have to fill head by "
     "head with retained entries",
     "set precision: int4, fp8 or fp4, or budget: all with layout: paged and retrieval: all"},
    {kEngines,
     kRefused,
     {kPrecision, kLayout},
     [](Given c) { return c.precision.packed() && !c.layout.keeps_phase; },
     "layout {layout} turns keys to new places, and precision {precision} has packed them: they would be "
     "quantised twice",
     "choose layout compact"},
    {kEngines,
     kRefused,
     {kRetrieval, kPrecision, kScorer},
     [](Given c) { return c.precision.packed() && c.chooses() && c.moves() && !at_chunks(c); },
     "retrieval {retrieval} summarises exact keys, but precision {precision} packs a prompt before scorer "
     "{scorer} moves its KV entries",
     "choose a scorer that works at chunk ends, layout page_mask, or precision bf16"},
    {kEngines,
     kRefused,
     {kRetrieval, kScorer},
     [](Given c) { return c.entry_lists() && c.chooses() && c.scorer.reads_decodes && at_decodes(c); },
     "scorer {scorer} uses the attention of every step, but retrieval {retrieval} lets steps read some pages "
     "only",
     "choose a scorer that works at chunk or prompt ends, or retrieval: all"},
    {kEngines,
     kRefused,
     {kScorer, kLayout},
     [](Given c) { return c.drops() && c.scorer.heads_alike && at_decodes(c) && c.layout.has_groups; },
     "scorer {scorer} ranks tokens for all heads of a layer alike, but layout {layout} lets them hold "
     "different ones",
     "choose layout compact"},
    {kEngines,
     kRefused,
     {kScorer, kLayout},
     [](Given c) { return c.in_place() && c.scorer.heads_apart; },
     "scorer {scorer} ranks each head's KV entries, but layout {layout} drops a token from all heads at once",
     "choose layout compact or ragged"},

    // What has no kernel yet.
    {kCudaOnly,
     kNotBuilt,
     {kPartition, kLayout},
     [](Given c) { return lists_splits(c.partition) && !(c.drops() && (c.moves() || c.ring())); },
     "partition {partition} lists the splits of decodes on CUDA for layouts whose heads hold different "
     "entries in whole pages, not for layout {layout}",
     "set partition: uniform or stream_k, layout: ragged, compact or ring, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kPartition, kPrecision, kRetrieval},
     [](Given c) { return lists_splits(c.partition) && (c.precision.packed() || c.chooses()); },
     "partition {partition} lists the splits of decodes that read all entries in bf16 on CUDA, not those of "
     "precision {precision} and retrieval {retrieval}",
     "set partition: uniform or stream_k, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kPrecision, kRetrieval},
     [](Given c) { return c.precision.packed() && !c.drops() && c.chooses(); },
     "precision {precision} with retrieval {retrieval} is not computed on CUDA",
     "set precision: bf16, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kRetrieval, kLayout},
     [](Given c) {
       return c.drops() && !c.precision.packed() && c.chooses() && !c.retrieval.needs_resident();
     },
     "retrieval {retrieval} among KV entries that are left in {precision} (layout {layout}) is not computed "
     "on CUDA; quest of fp8, int4 or fp4 is, and freekv and arkvale of bf16",
     "set precision: int4, retrieval: freekv, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kScorer},
     [](Given c) { return c.ranks() && c.scorer.gathers && at_chunks(c); },
     "scorer {scorer} gathers attention over a whole prompt, and at chunk ends it would be that of each "
     "chunk "
     "alone, which is not computed on CUDA",
     "set scorer_options.compression_trigger: prompt_end, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kScorer, kPrecision},
     [](Given c) { return c.drops() && c.precision.packed() && c.scorer.gathers; },
     "what scorer {scorer} gathers of KV entries that are packed (precision {precision}) is not computed on "
     "CUDA",
     "set precision: bf16, or --backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kRetrieval, kPrecision, kScorer},
     [](Given c) {
       return c.drops() && c.precision.packed() && c.chooses() &&
              (!c.moves() || !at_chunks(c) || !c.budget.known_at_admission());
     },
     "retrieval {retrieval} among KV entries that are left by scorer {scorer}, budget {budget} and layout "
     "{layout} is not computed on CUDA; a scorer that works at chunk ends, a budget whose counts are known "
     "and layout compact or ragged are",
     "--backend=cpu"},
    {kCudaOnly,
     kNotBuilt,
     {kScorer, kLayout},
     [](Given c) { return c.drops() && c.scorer.scores_tokens && c.layout.has_groups; },
     "scorer {scorer} scores tokens for all heads at once, and layout {layout} lets heads hold different "
     "ones: that is not computed on CUDA",
     "choose layout compact"},
    {kCudaOnly,
     kNotBuilt,
     {kScorer, kLayout, kPrefixCache},
     [](Given c) { return c.in_place() && c.scorer.gathers && c.prefix_cache; },
     "what scorer {scorer} gathers lies with its KV entries, and layout {layout} lets requests share them: "
     "that is not computed on CUDA",
     "set prefix_cache: false, or choose layout compact"},
};

}  // namespace

std::span<const CombinationRow> engine_rows() { return kEngineRows; }

}  // namespace kvtwin
