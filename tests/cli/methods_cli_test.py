#!/usr/bin/env python3
"""Each method that drops KV entries, as a small scenario in both backends: the data decides on the CPU engine, and the
simulated backend with the same outcomes decides the same.
"""

from program import METHOD_DIR, CommandLine, main


def dropping(folder):
    """Names of the scenarios whose budget is not "all"."""
    return sorted(file.stem for file in folder.glob("*.textproto") if 'budget: "' in file.read_text())


class Methods(CommandLine):
    def tiny(self, method, *more):
        return self.kvtwin("run", METHOD_DIR / f"tiny/{method}.textproto", "--quiet", *more)

    def test_each_one_that_drops_kv_entries_has_a_small_scenario(self):
        large = dropping(METHOD_DIR)
        self.assertEqual(set(large) - set(dropping(METHOD_DIR / "tiny")), set())
        self.assertGreaterEqual(len(large), 23)

    def test_computed_under_the_virtual_clock_or_simulated_with_its_outcomes_a_run_decides_the_same(self):
        for method in dropping(METHOD_DIR / "tiny"):
            with self.subTest(method):
                computed = self.tiny(method, "--backend=cpu", "--clock=virtual", "--record", f"--out={method}")
                reads = computed.out.partition("decode reads")[2].partition("\n")[0]
                read, of = float(reads.split()[0]), float(reads.partition("M of")[2].split()[0])
                self.assertLess(read, 0.8 * of)  # entries are dropped

                more = []
                chooses, recalls = "choosing heads" in computed.out, method == "freekv_snapkv"
                self.assertEqual(chooses, method == "composite" or recalls)
                if chooses:  # heads select pages; without recall no selected page is absent
                    if not recalls:
                        self.assertNotEqual(computed.after("absent; 0.00 % of ")[0], "0")
                    self.assertEqual(" 0.00 % of the head-pages chosen were absent" not in computed.out, recalls)
                    more = ["--set=simulation.retrieval.outcomes=recorded"]
                if "ring" not in reads:
                    more += ["--set=simulation.retained=recorded", f"--set=simulation.recorded_run={self.folder}/{method}"]
                simulated = self.tiny(method, "--backend=sim", "--no-write", *more)
                self.assertNotIn("the others fixed", simulated.out)
                self.check_same_decisions(simulated, computed)
                self.check_same_decisions(self.replay(method), computed)

    def test_the_times_of_scorers_and_compressions_are_reported_and_free_compressions_omit_them(self):
        for method, parts in (("snapkv", ""), ("h2o", "capture"), ("kvzip", "probe"), ("tangram_released", "capture")):
            with self.subTest(method):
                priced, free = [self.tiny(method, "--backend=sim", "--no-write", "--format=jsonl",
                                          f"--set=cost.compressions={how}").json for how in ("roofline", "free")]
                self.assertGreater(priced["compressions"], 0)
                self.assertNotIn("compressions", free)
                self.assertGreater(priced["prompt_steps_compression_s"], 0)
                self.assertLess(priced["prompt_steps_compression_s"], priced["prompt_steps_s"])
                self.assertGreater(priced["time_latency_s"], free["time_latency_s"])
                for part in ("probe", "capture"):
                    self.assertEqual(priced[f"compression_{part}_s"] > 0, part == parts, part)

    def test_a_recording_under_the_wall_clock_replays_to_the_same_digest(self):
        for method in ("tangram", "adakv", "intentkv", "h2o", "judge_q", "streaming_llm"):
            with self.subTest(method):
                run = self.tiny(method, "--backend=cpu", "--clock=wall", "--record", "--set=replay.requests_max=2",
                                f"--out={method}")
                self.check_same_decisions(self.replay(method), run)

    def test_a_runs_notes_say_how_templates_and_queries_of_prompts_are_found(self):
        self.write("lengths.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2026-01-01 00:00:00.0000000,600,8\n2026-01-01 00:00:00.0000000,700,8\n")
        rows = (("scorer intent_rule: templates and queries are those of the trace's roles",),
                ("scorer intent_rule: replay.roles is false, so templates and queries are the first 16 and the last 64 "
                 "tokens", "--set=replay.roles=false"),
                ("scorer intent_rule: 2 of 2 requests of the trace have no roles; their templates and queries are the "
                 "first 16", f"--set=trace.path={self.folder}/lengths.csv", "--set=trace.format=azure"),
                ("", "--set=policies.scorer=snapkv"))
        decisions = set()
        for note, *sets in rows:
            with self.subTest(note):
                run = self.tiny("intentkv", "--backend=sim", "--no-write", *sets)
                self.assertEqual("scorer intent_rule" in run.out, note != "")
                self.assertIn(note, " ".join(run.out.split()))  # a note of the summary may be broken into lines
                decisions.add(run.after("decisions="))
        # Without roles, both scorers force the same positions.
        self.assertEqual(len(decisions), len(rows) - 1)


main()
