#!/usr/bin/env python3
"""Forced outcomes: an engine that computes real data follows the outcomes of a record or a model, and decides and takes
as long as the simulated backend with the same outcomes.
"""

from program import METHOD_DIR, CommandLine, main

FORCED = "--set=simulation.force_outcomes=true"


class Forced(CommandLine):
    def tiny(self, method, backend, out, *more):
        return self.kvtwin("run", METHOD_DIR / f"tiny/{method}.textproto", "--quiet", f"--backend={backend}",
                           "--clock=virtual", "--record", "--force", f"--out={out}", *more)

    def test_with_a_runs_outcomes_a_run_on_other_data_repeats_it(self):
        for method, field in (("adakv", "retained"), ("critical_kv", "retained"), ("kvzip", "retained"),
                              ("intentkv", "retained"), ("intentkv_slots", "retained"),
                              ("tangram_released", "retained"), ("freekv", "retrieval.outcomes"),
                              ("arkvale", "retrieval.outcomes")):
            with self.subTest(method):
                natural = self.tiny(method, "cpu", "a")
                repeated = self.tiny(method, "cpu", "c", "--set=seed=9", FORCED, "--set=simulation.recorded_run=a",
                                     f"--set=simulation.{field}=recorded")
                self.assertIn("forced, recorded", repeated.out)
                self.assertNotIn("the others fixed", repeated.out)
                self.assertNotIn("; met in", repeated.out)
                self.check_same_decisions(repeated, natural)
                self.check_same_files("a", "c", "requests.csv", "outcomes.binpb")
                if method in ("adakv", "intentkv", "freekv"):  # the data alone decides otherwise
                    self.tiny(method, "cpu", "b", "--set=seed=9")
                    self.assertNotEqual(self.read("a/outcomes.binpb"), self.read("b/outcomes.binpb"))

    def test_with_fixed_rates_or_a_profile_real_data_and_simulation_decide_the_same_at_the_same_times(self):
        for method, *rates in (("freekv", 0.05, 0.1), ("freekv", 0.2, 0), ("freekv", 0.5, 1), ("freekv", 1, 0.3),
                               ("arkvale", 0.2, 0), ("adakv",), ("critical_kv",), ("kvzip",), ("intentkv",),
                               ("tangram_released",)):
            sets = [f"--set=simulation.retrieval.{name}={rate}"
                    for name, rate in zip(("miss_rate", "correction_rate"), rates)]
            with self.subTest(method, rates=rates):
                simulated = self.tiny(method, "sim", "a", FORCED, *sets)
                computed = self.tiny(method, "cpu", "b", FORCED, *sets)
                self.assertNotIn("forced, ", simulated.out)
                self.assertIn("forced, fixed", computed.out)
                self.assertNotIn("; met in", computed.out)
                self.check_same_decisions(computed, simulated)
                self.check_same_files("a", "b", "requests.csv")

    def test_also_under_the_wall_clock(self):
        wall = self.kvtwin("run", METHOD_DIR / "tiny/freekv.textproto", "--quiet", FORCED, "--backend=cpu",
                           "--clock=wall", "--no-write", "--set=simulation.retrieval.miss_rate=1",
                           "--set=simulation.retrieval.correction_rate=0")
        self.assertIn("outcomes forced, fixed", wall.out)
        self.assertIn("0 head-pages recalled before attention", wall.out)
        self.assertNotIn("; met in", wall.out)


main()
