#!/usr/bin/env python3
"""Outcomes: recorded and replayed; retrieval together with dropped KV entries; reads, fragmentation, partitions."""

from program import METHOD_DIR, CommandLine, main

FEW = "--set=replay.sessions_max=2"


class Outcomes(CommandLine):
    def method(self, name, *more, **how):
        return self.kvtwin("run", METHOD_DIR / f"{name}.textproto", "--quiet", *more, **how)

    def record(self, name, out, *more):
        return self.method(name, "--record", "--force", FEW, f"--out={out}", *more)

    def figures(self, name, *more):
        return self.method(name, "--no-write", "--format=jsonl", *more).json

    def test_a_run_with_anothers_outcomes_makes_the_same_decisions_at_the_same_times(self):
        # A setting that changes the draws, if they were used; the outcomes to record.
        for method, other, recorded in (
                ("freekv", "retrieval.miss_rate=0.7", "retrieval.outcomes"),
                ("tangram_released", "retained=profile", "retained"),
                ("adakv", "seed=9", "retained"),
                ("intentkv", "seed=9", "retained")):
            with self.subTest(method):
                other = "--set=" + (other if other == "seed=9" else "simulation." + other)
                from_record = (f"--set=simulation.recorded_run={self.folder}/a", f"--set=simulation.{recorded}=recorded")
                self.record(method, "a", other)
                repeated = self.record(method, "b", *from_record).out
                self.assertIn("recorded", repeated)
                self.assertNotIn("the others fixed", repeated)
                self.check_same_files("a", "b", "requests.csv", "outcomes.binpb")
                # Requests that the record lacks are reported.
                more = self.method(method, "--no-write", "--set=replay.sessions_max=3", *from_record)
                self.assertIn("the others fixed", more.out)
                # The record does not depend on coalescing.
                self.record(method, "c", other, "--set=simulation.coalesce=false")
                self.check_same_files("a", "c", "outcomes.binpb")

    def test_a_record_of_other_head_groups_is_refused(self):
        self.record("adakv", "adakv", "--set=replay.sessions_max=1")
        refused = self.method("tangram_released", "--no-write", "--set=simulation.retained=recorded",
                              f"--set=simulation.recorded_run={self.folder}/adakv", status=2)
        self.assertIn("head groups", refused.err)

    def test_a_step_selects_among_the_retained_entries_and_a_smaller_budget_is_faster(self):
        quest, budget = "--set=policies.retrieval=quest", "--set=policies.retrieval_options.budget_tokens="
        for method in ("tangram_released", "intentkv", "composite"):
            with self.subTest(method):
                def itl(*sets):
                    return self.figures(method, FEW, *sets)["itl_p50_ms"]

                # The composite packs and drops, so little is left to read, and selection costs kernels.
                if method != "composite":
                    small = itl(quest, budget + "1088")
                    self.assertLess(small, itl())
                    self.assertLess(small, itl(quest, budget + "65536"))
                self.record(method, "a", quest)
                self.record(method, "b", quest, "--set=simulation.coalesce=false")
                self.check_same_files("a", "b", "log.binpb", "requests.csv")
                self.kvtwin("replay", "a", "--quiet")

    def test_raw_reads_are_at_least_effective_ones_and_equal_where_nothing_is_dropped(self):
        def reads(method, setting):
            run = self.figures(method, "--set=replay.sessions_max=3", f"--set={setting}")
            raw, effective, peak, peak_effective = (
                run[f"reads_{name}"] for name in ("raw", "effective", "peak_raw", "peak_effective"))
            self.assertTrue(raw >= effective > 0 and raw >= peak >= peak_effective)
            return raw, effective, peak, peak_effective

        raw, effective, peak, peak_effective = reads("dense", "seed=1")
        self.assertEqual((raw, peak), (effective, peak_effective))
        pruned, small = reads("intentkv", "seed=1"), reads("intentkv", "policies.budget_options.kv_entries=2048")
        self.assertLess(pruned[1], pruned[0])
        self.assertEqual(pruned[0::2], small[0::2])  # raw reads do not depend on dropped entries
        self.assertLess(small[1], pruned[1])
        self.assertLess(small[3], pruned[3])
        # B limits the compressible history; the prefix and the request's own decoded tokens are extra.
        self.assertGreaterEqual(small[3], 2048)

    def test_group_fragmentation_is_none_with_one_head_per_group_and_most_with_adjacent_groups(self):
        lost, reclaimed = zip(*(
            (run["fragmentation_group"], run["reclaimed"]) for run in (
                self.figures("tangram", FEW, f"--set=policies.layout_options.heads_per_group={heads}",
                             f"--set=policies.layout_options.clustering={clustering}")
                for heads, clustering in ((1, "across_layers"), (4, "across_layers"), (4, "per_layer"), (4, "adjacent")))))
        self.assertEqual(lost[0], 0)
        self.assertEqual(sorted(set(lost)), list(lost))
        self.assertEqual(sorted(set(reclaimed), reverse=True), list(reclaimed))
        # docs/design/methods/tangram.md#clustering, B = mu + 2 sigma: of the entries in groups of four, heads alone
        # need .179 of .186 across layers, .371 per layer, .477 adjacent; forced and decoded tokens make the
        # difference smaller.
        self.assertLess(lost[1], 1 - 0.179 / 0.186 + 0.005)
        self.assertLess(lost[2], 1 - 0.179 / 0.371)
        self.assertLess(lost[3], 1 - 0.179 / 0.477)

    def test_the_price_of_a_partition_orders_the_policies_and_only_where_heads_differ(self):
        def slowdown(method, partition):
            return self.figures(method, FEW, f"--set=policies.partition={partition}").get("attention_slowdown")

        even, ahead, uniform = (slowdown("tangram", partition) for partition in ("stream_k", "aot", "uniform"))
        self.assertTrue(1 <= even < 1.2, even)  # one request's few thousand KV entries per layer: few tiles for 216 blocks
        self.assertLess(ahead, uniform)
        self.assertGreater(uniform, 1.3)
        self.assertIsNone(slowdown("snapkv", "uniform"))  # all heads retain the same number: no price


main()
