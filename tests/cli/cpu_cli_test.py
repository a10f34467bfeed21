#!/usr/bin/env python3
"""Backends that compute real data."""

from program import METHOD_DIR, MODELS, SHIPPED, CommandLine, main

SCENARIO = SHIPPED / "search_tiny.textproto"
ONE_SESSION = "--set=replay.sessions_max=1"  # a second or two
VIRTUAL = ("--backend=cpu", "--clock=virtual")


class Computed(CommandLine):
    def run_of(self, scenario, *more, **how):
        return self.kvtwin("run", scenario, "--quiet", *more, **how)

    def search(self, *more, **how):
        return self.run_of(SCENARIO, ONE_SESSION, *more, **how)

    def check_same_samples(self, one, other):
        self.assertEqual(one.after("samples="), other.after("samples="))

    def check_other_samples(self, one, other):
        self.assertNotEqual(one.after("samples="), other.after("samples="))

    def test_a_run_on_real_data_is_recorded_and_its_log_replays(self):
        run = self.search("--backend=cpu", "--record", "--out=a")
        for part in ("(computed ", "100.0 % measured", "forced decoding, wall clock"):
            self.assertIn(part, run.out)
        self.check_same_decisions(self.replay("a"), run)
        # Times are measured and differ, but the samples of requests do not. Nor do they with another step budget or
        # page size, or with the weights read from a file.
        self.kvtwin("model", "init", MODELS / "tiny/llama-4x256.textproto", "--seed=42", "--out=m")
        again = self.search("--backend=cpu", "--no-write", f"--set=cpu.checkpoint={self.folder}/m",
                            "--set=limits.step_tokens_max=200", "--set=memory.page_tokens=32")
        self.check_same_samples(again, run)
        self.check_other_samples(self.search("--backend=cpu", "--no-write", "--seed=7"), run)

    def test_greedy_decoding_is_reproducible(self):
        greedy = ("--backend=cpu", "--no-write", "--set=cpu.decode=greedy")
        once = self.search(*greedy)
        self.assertIn("greedy decoding", once.out)
        self.check_same_samples(self.search(*greedy, "--set=limits.requests_max=1"), once)

    def test_under_the_virtual_clock_it_decides_as_the_simulated_backend_does_and_samples_the_same(self):
        computed = self.search(*VIRTUAL, "--no-write")
        self.check_same_decisions(computed, self.search("--backend=sim", "--no-write"))
        self.check_same_samples(computed, self.search("--backend=cpu", "--clock=wall", "--no-write"))

    def test_with_a_chat_template_tags_come_from_token_ids_that_every_backend_reads(self):
        scenario = METHOD_DIR / "tiny/triaxial.textproto"
        mistral = (ONE_SESSION, "--no-write", "--set=replay.chat_template=mistral")
        computed = self.run_of(scenario, *mistral, *VIRTUAL)
        self.assertIn("roles of tokens are read from token ids, in chat template mistral", computed.out)
        self.assertRegex(computed.out, "role tagger +[0-9.]+ ns of the host per prompt token")
        self.check_same_decisions(computed, self.run_of(scenario, *mistral, "--backend=sim"))
        # Delimiters have a tag of their own, and ids that are not drawn.
        from_spans = self.run_of(scenario, ONE_SESSION, "--no-write", *VIRTUAL)
        self.assertNotEqual(computed.after("decisions="), from_spans.after("decisions="))
        self.check_other_samples(computed, from_spans)
        # A policy that reads no roles computes the same prompts with the same decisions as without a template.
        dense = ("--set=policies.precision=bf16", "--set=policies.precision_options.tag_map=", "--allow-unread")
        self.check_same_decisions(self.run_of(scenario, *mistral, *dense, *VIRTUAL),
                                  self.run_of(scenario, ONE_SESSION, "--no-write", *dense, *VIRTUAL))
        # A scorer reads what a prompt asks in the same way.
        asked = self.run_of(METHOD_DIR / "tiny/intentkv.textproto", *mistral, "--backend=sim")
        self.assertIn("templates and queries are found by token ids", asked.out)
        # Wall time is in results of the wall clock alone.
        self.assertNotIn("tagging_ns_per_token", self.run_of(scenario, *mistral, *VIRTUAL, "--format=jsonl").json)
        wall = self.run_of(scenario, *mistral, "--backend=cpu", "--clock=wall", "--format=jsonl").json
        self.assertGreater(wall["tagging_ns_per_token"], 0)

    def test_a_chat_template_that_does_not_fit_is_an_error(self):
        scenario = METHOD_DIR / "tiny/triaxial.textproto"
        for value, message in (
                ("alpaca", 'chat_template is "alpaca"; one of: llama3, chatml, mistral, tasks, ""'),
                ("llama3", "token 128006 is special in llama3, but not in the vocabulary of llama-4x256, with 512 ids")):
            self.assertIn(message, self.run_of(scenario, f"--set=replay.chat_template={value}", status=2).err)
        both = self.run_of(scenario, "--set=replay.chat_template=mistral", "--set=replay.roles=false", status=2)
        self.assertIn("roles is false, but chat_template is to find roles", both.err)
        unread = self.run_of(SCENARIO, "--backend=sim", "--set=replay.chat_template=mistral", status=2)
        self.assertIn("is not read where policies.precision is bf16", unread.err)

    def test_cuda_without_a_gpu_the_error_names_it_and_with_one_it_decides_as_the_others_do(self):
        virtual = ("--backend=cuda", "--no-write", "--clock=virtual")
        first = self.search(*virtual, status=None)
        if first.status != 0:
            self.ended(first, 4, virtual)
            self.assertRegex(first.err, "there is no CUDA GPU here|this build has no CUDA backend")
            self.assertIn("--backend=cpu, or --backend=sim", first.err)
            return
        self.assertIn("computed in bf16 on a GPU", first.out)
        self.check_same_decisions(first, self.search("--backend=sim", "--no-write"))
        self.check_same_samples(self.search(*virtual), first)
        wall = self.search("--backend=cuda", "--record", "--set=cuda.timings=true", "--timeline=0..10", "--out=a")
        self.assertIn("100.0 % measured", wall.out)
        self.assertTrue((self.folder / "a/operations.csv").exists())
        self.check_same_decisions(self.kvtwin("replay", "a"), wall)
        self.search("--backend=cuda", "--no-write", "--set=engines.tensor_parallel=2", status=2)

    def test_packed_formats_are_computed_and_decide_as_the_simulated_backend_does(self):
        for method in ("int4", "kivi", "triaxial"):
            with self.subTest(method):
                scenario = METHOD_DIR / f"tiny/{method}.textproto"
                one = (scenario, "--no-write", ONE_SESSION)
                wall = self.run_of(*one, "--backend=cpu", "--clock=wall")
                self.check_other_samples(self.run_of(*one, "--backend=cpu", "--set=policies.precision=bf16"), wall)
                simulated = self.run_of(*one, "--backend=sim")
                self.check_same_decisions(self.run_of(*one, *VIRTUAL), simulated)
                single = self.run_of(*one, "--backend=sim", "--set=simulation.coalesce=false")
                self.check_same_decisions(single, simulated)
                self.run_of(scenario, "--record", f"--out={method}")
                self.kvtwin("replay", method)

    def test_requests_that_share_compressed_prefixes_sample_as_those_that_compute_them(self):
        turns = (METHOD_DIR / "tiny/tangram_turns.textproto", "--no-write", ONE_SESSION)
        shared = self.run_of(*turns, *VIRTUAL)
        apart = self.run_of(*turns, *VIRTUAL, "--set=limits.prefix_cache=false", "--set=policies.identity=none")
        self.assertIn("prefix reuse              50.9 %", shared.out)
        self.check_same_samples(shared, apart)
        self.check_same_decisions(shared, self.run_of(*turns, "--backend=sim"))

    def test_turns_that_grow_old_are_requantised_in_both_backends_alike_or_stay_in_int4(self):
        self.kvtwin("trace", "synth", "bfcl-memory-like", "--sessions=1", "--set=dialogues=1", "--out=turns.kvtrace")

        def run(ageing, *more):
            return self.run_of(METHOD_DIR / "tiny/triaxial.textproto", f"--set=trace.path={self.folder}/turns.kvtrace",
                               "--set=replay.arrivals=all_at_once", "--set=replay.requests_max=6",
                               "--set=policies.identity=session",
                               f"--set=policies.precision_options.ageing={ageing}", *more)

        simulated = run("requantise", "--backend=sim", "--no-write")
        self.assertGreaterEqual(int(simulated.after("requantised")), 32)
        single = run("requantise", "--backend=sim", "--no-write", "--set=simulation.coalesce=false")
        self.check_same_decisions(single, simulated)
        computed = run("requantise", *VIRTUAL, "--record", "--out=aged")
        self.check_same_decisions(computed, simulated)
        self.replay("aged")
        ignored = run("ignore", "--backend=cpu", "--no-write")
        self.assertNotIn("requantised", ignored.out)
        self.check_other_samples(ignored, computed)


main()
