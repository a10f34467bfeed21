#!/usr/bin/env python3
"""Retrieval: the scenarios of scenarios/methods, their logs, their links."""

from program import METHOD_DIR, MODELS, CommandLine, main

FEW = "--set=replay.sessions_max=2"


class Retrieval(CommandLine):
    def method(self, name, *more):
        return self.kvtwin("run", METHOD_DIR / f"{name}.textproto", "--quiet", *more)

    def figures(self, name, *sets):
        return self.method(name, "--no-write", "--format=jsonl", *(f"--set={one}" for one in sets)).json

    def a100(self, **changes):
        """A node like the shipped one, with other figures."""
        node = (MODELS / "node/a100-40gb.textproto").read_text()
        for field, (before, after) in changes.items():
            old = f"{field}: {before}" if field == "gpus" else f"{field} {{ value: {before}"
            self.assertIn(old, node)
            node = node.replace(old, old.replace(before, after))
        self.write("node.textproto", node)
        return f"hardware.node={self.folder}/node.textproto"

    def test_every_method_runs_its_log_replays_and_coalescing_changes_no_byte_of_it(self):
        for method in ("quest", "arkvale", "shadowkv", "infinigen", "freekv"):
            with self.subTest(method):
                self.method(method, "--record", "--force", FEW, "--out=a")
                self.method(method, "--record", "--force", FEW, "--out=b", "--set=simulation.coalesce=false")
                self.check_same_files("a", "b", "log.binpb", "requests.csv")
                self.assertIn('"same":true', self.kvtwin("replay", "a", "--format=jsonl").out)

    def test_the_summary_reports_recalls_and_the_source_of_their_outcomes(self):
        free = self.method("freekv", "--no-write").out
        self.assertIn("outcomes fixed", free)
        self.assertIn("GB recalled", free)
        profile = self.method("freekv", "--no-write", "--format=jsonl", "--set=simulation.retrieval.outcomes=profile")
        self.assertIn('"outcomes":"profile"', profile.out)
        self.assertNotIn("outcomes", self.method("dense", "--no-write", "--format=jsonl").out)

    def test_steps_get_slower_with_misses_and_corrections_and_no_page_moves_without_them(self):
        def itl(method, miss, *sets):
            return self.figures(method, "replay.sessions_max=1", f"simulation.retrieval.miss_rate={miss}",
                                *sets)["itl_p50_ms"]

        for method in ("arkvale", "shadowkv", "freekv"):
            self.assertGreater(itl(method, 0.5), itl(method, 0.1))
            self.assertGreater(itl(method, 0.1), itl(method, 0))
        corrected = "simulation.retrieval.correction_rate="
        self.assertGreater(itl("freekv", 0.3, corrected + "1"), itl("freekv", 0.3, corrected + "0"))
        # Above tau 1 speculation gains nothing; without it each step takes the same time except for the check.
        always = itl("freekv", 0.3, "policies.retrieval_options.tau=1.5")
        blocking = itl("freekv", 0.3, "policies.retrieval_options.speculation=false")
        self.assertNear(always, blocking, 0.02)
        self.assertEqual(itl("infinigen", 0), itl("infinigen", 1))  # it retains no page

    def test_one_gpu_has_exclusive_links_and_both_fidelities_agree(self):
        collapsed, expanded = [self.figures("freekv", f"simulation.fidelity={how}") for how in ("collapsed", "expanded")]
        self.assertEqual(collapsed["retrieval_steps_expanded"], 0)
        self.assertGreater(expanded["retrieval_steps_expanded"], 500)
        self.assertNear(expanded["elapsed_s"], collapsed["elapsed_s"], 1e-6)

    def test_an_engine_of_two_gpus_moves_each_heads_pages_over_its_own_link(self):
        node = self.a100(gpus=("1", "2"))

        def run(tensor_parallel, fidelity):
            return self.figures("arkvale", node, "simulation.retrieval.miss_rate=1",
                                f"engines.tensor_parallel={tensor_parallel}", f"simulation.fidelity={fidelity}")

        one, two = run(1, "collapsed"), run(2, "collapsed")
        self.assertEqual(two["retrieval_bytes_in"], one["retrieval_bytes_in"])  # every selectable page of every head
        self.assertLess(two["elapsed_s"], one["elapsed_s"] * 0.6)
        self.assertNear(run(2, "expanded")["elapsed_s"], two["elapsed_s"], 0.001)

    def test_where_engines_contend_for_host_memory_auto_expands_steps(self):
        """Eight engines share the memory of one socket: at 400 GB/s it does not limit their recalls, at 12 GB/s it does."""
        def run(bytes_per_s, fidelity):
            node = self.a100(gpus=("1", "8"), host_memory_bytes=("256000000000", "2560000000000"),
                             host_memory_bytes_per_s=("300000000000", bytes_per_s))
            made = self.figures("freekv", node, "engines.count=8", "replay.replicas=2",
                                "simulation.retrieval.miss_rate=0.5", f"simulation.fidelity={fidelity}")
            return made["itl_p50_ms"], made["retrieval_steps_expanded"]

        fast, slow = "400000000000", "12000000000"
        self.assertNear(run(fast, "collapsed")[0], run(fast, "expanded")[0], 0.01)
        self.assertEqual(run(fast, "auto")[1], 0)
        expanded_ms = run(slow, "expanded")[0]
        self.assertLess(run(slow, "collapsed")[0], expanded_ms * 0.95)
        chosen_ms, chosen = run(slow, "auto")
        self.assertGreater(chosen, 100)
        self.assertNear(chosen_ms, expanded_ms, 0.05)


main()
