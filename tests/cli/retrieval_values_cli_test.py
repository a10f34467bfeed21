#!/usr/bin/env python3
"""The retrieval methods on real data: scenarios/methods/tiny."""

from program import METHOD_DIR, CommandLine, main

VIRTUAL = ("--backend=cpu", "--clock=virtual")
ON_VALUES = ("quest", "arkvale", "shadowkv", "infinigen", "freekv")


class RetrievalOnValues(CommandLine):
    def tiny(self, method, *more):
        return self.kvtwin("run", METHOD_DIR / f"tiny/{method}.textproto", "--quiet", *more)

    def repeat_in_simulation(self, method):
        """The simulated backend with the computed outcomes repeats the run, byte for byte."""
        computed = self.tiny(method, *VIRTUAL, "--record", "--force", "--out=cpu")
        simulated = self.tiny(method, "--backend=sim", "--record", "--force", "--out=sim",
                              "--set=simulation.retrieval.outcomes=recorded",
                              f"--set=simulation.recorded_run={self.folder}/cpu")
        self.assertIn("outcomes natural", computed.out)
        self.assertNotIn("the others fixed", simulated.out)
        self.check_same_decisions(simulated, computed)
        self.check_same_files("sim", "cpu", "requests.csv", "log.binpb", "outcomes.binpb")
        return computed

    def test_the_simulated_backend_with_the_computed_outcomes_repeats_the_run(self):
        for method in ON_VALUES:
            with self.subTest(method):
                computed = self.repeat_in_simulation(method)
                # Other outcomes take other times, so requests join other steps. (Quest recalls nothing, and InfiniGen
                # always selects the maximum.)
                if method not in ("quest", "infinigen"):
                    fixed = self.tiny(method, "--backend=sim", "--no-write")
                    self.assertNotEqual(fixed.after("decisions="), computed.after("decisions="))

    def test_turns_that_start_with_prefixes_on_the_host_sample_the_same_as_without_in_both_backends(self):
        computed = self.repeat_in_simulation("freekv_turns")
        self.replay("cpu")
        apart = self.tiny("freekv_turns", *VIRTUAL, "--no-write", "--set=limits.prefix_cache=false")
        self.assertEqual(apart.after("samples="), computed.after("samples="))
        self.assertNotEqual(apart.after("decisions="), computed.after("decisions="))

    def test_under_the_wall_clock_a_runs_log_replays_and_samples_equal_those_of_the_virtual_clock(self):
        room = "--set=memory.gpu_pages=400"  # for all: a preempted request samples differently
        for method in ON_VALUES:
            with self.subTest(method):
                wall = self.tiny(method, "--backend=cpu", "--clock=wall", "--record", "--force", "--out=a", room)
                self.check_same_decisions(self.replay("a"), wall)
                other = self.tiny(method, *VIRTUAL, "--no-write", room)
                for name in ("samples=", "outcomes natural: "):
                    self.assertEqual(other.after(name), wall.after(name))

    def test_the_resulting_rates_are_printed_and_can_be_given_to_the_simulated_backend(self):
        table = self.tiny("freekv", *VIRTUAL, "--no-write")
        self.assertIn("% of the head-pages chosen were absent", table.out)
        figures = ("--no-write", "--format=jsonl")
        computed = self.tiny("freekv", *figures, *VIRTUAL).json
        miss, correction = computed["retrieval_miss_rate"], computed["retrieval_correction_rate"]
        self.assertGreater(miss, 0.2)
        self.assertTrue(0.2 < correction < 0.8, correction)
        # The recalled bytes, at K and V of 16 tokens of 64 numbers in bf16.
        pages = computed["retrieval_pages_now"] + computed["retrieval_pages_next"]
        self.assertEqual(computed["retrieval_bytes_in"], pages * 2 * 16 * 64 * 2)
        fixed = self.tiny("freekv", *figures, "--backend=sim", f"--set=simulation.retrieval.miss_rate={miss:.6f}",
                          f"--set=simulation.retrieval.correction_rate={correction:.6f}").json
        self.assertNear(fixed["retrieval_miss_rate"], miss, 0.1)
        self.assertNear(fixed["retrieval_correction_rate"], correction, 0.1)


main()
