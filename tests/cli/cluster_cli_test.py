#!/usr/bin/env python3
"""Clusters: engines of several kinds, separated prefill and decode, prices."""

from program import MODELS, SHIPPED, SOURCE, CommandLine, main

SAMPLE = SHIPPED / "coding_agents_small.textproto"
APART = ("--set=hardware.node=h200-x8", "--set=engines.count=5", "--set=engines.prefill=2",
         "--set=engines.routing=prefix_aware")


class Cluster(CommandLine):
    def figures(self, *more, scenario=SAMPLE):
        return self.kvtwin("run", scenario, "--no-write", "--quiet", "--format=jsonl", *more).json

    def test_without_a_router_requests_of_sessions_go_to_the_engine_that_holds_their_prefix(self):
        def run(*more):
            return self.figures("--set=engines.count=2", "--set=hardware.nodes=0", "--set=replay.sessions_max=6", *more)

        unstated, turns = run(), run("--set=engines.routing=round_robin")
        self.assertEqual(unstated["decisions"], run("--set=engines.routing=prefix_aware")["decisions"])
        self.assertGreater(unstated["prefix_reuse"], turns["prefix_reuse"])
        # Without cached prefixes there is nothing to find.
        uncached = "--set=limits.prefix_cache=false"
        self.assertEqual(run(uncached)["decisions"], run(uncached, "--set=engines.routing=round_robin")["decisions"])

    def test_separated_prefill_and_decode_every_request_once_tokens_conserved_recorded_and_replayed(self):
        together, apart = self.figures(), self.figures(*APART)
        for conserved in ("requests", "requests_finished", "prompt_tokens", "output_tokens", "sessions"):
            self.assertEqual(apart[conserved], together[conserved])
        self.assertEqual(apart["requests_open"], 0)
        self.assertGreater(apart["transfer_bytes_received"], 0)
        self.assertEqual(together["transfer_bytes_received"], 0)
        # The parts of each request's time still sum to its latency.
        parts = sum(apart[f"time_{part}_s"]
                    for part in ("queue", "transfer", "prefill", "recompute", "decode", "host"))
        self.assertNear(parts, apart["time_latency_s"], 1e-9)
        recorded = self.kvtwin("run", SAMPLE, "--record", "--quiet", "--out=r", *APART)
        self.assertIn("decisions=" + apart["decisions"], recorded.out)
        self.replay("r")

    def test_coalescing_changes_nothing_with_separated_prefill_and_decode(self):
        coalesced, single = [
            self.figures("--set=hardware.node=h200-x8", "--set=engines.count=4", "--set=engines.prefill=1",
                         "--set=engines.routing=hint_aware", f"--set=simulation.coalesce={how}")
            for how in ("true", "false")]
        for figure in ("ttft_mean_ms", "tpot_p99_ms", "itl_p99_ms", "session_makespan_mean_ms", "steps"):
            self.assertEqual(coalesced[figure], single[figure])

    def test_gpus_of_several_kinds_and_their_prices(self):
        mixed = self.write("mixed.textproto",
                           SAMPLE.read_text().replace("../../traces/data/", f"{SOURCE}/traces/data/") +
                           '\nengines { further { node: "l40s" count: 2 } '
                           'further { node: "h200-x8" tensor_parallel: 2 } }\n')
        several, one = self.figures(scenario=mixed), self.figures()
        self.assertEqual(several["gpus"], 1 + 2 + 2)
        self.assertGreater(several["gpu_pages"], one["gpu_pages"])
        self.assertEqual(several["requests_finished"], one["requests_finished"])
        # The price per hour times the hours of the run, per million tokens.
        spent = one["usd_per_hour"] * one["elapsed_s"] / 3600
        self.assertNear(one["usd_per_million_output_tokens"], 1e6 * spent / one["output_tokens"], 1e-5)
        self.assertNear(one["usd_per_million_tokens"], 1e6 * spent / (one["output_tokens"] + one["prompt_tokens"]), 1e-5)
        run = ("run", mixed, "--no-write", "--quiet")
        # Without a connection between nodes no KV can be handed over.
        self.refused("there is no way for KV from engines[0]", *run, "--set=engines.prefill=1")
        self.refused("holds measurements of one kind of GPU, but engines run on h200 and l40s", *run,
                     f"--set=cost.profile={MODELS}/measured/h200.textproto")


main()
