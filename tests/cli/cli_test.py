#!/usr/bin/env python3
"""kvtwin run, replay, compare, report and import on a shipped scenario.

  cli_test.py KVTWIN PERFETTO_CHECK
"""

import subprocess
import sys

from program import SHIPPED, SOURCE, CommandLine, main, rows_of

PERFETTO_CHECK = sys.argv.pop(2)
SAMPLE = SHIPPED / "coding_agents_small.textproto"


class Runs(CommandLine):
    def test_help_opens_with_an_example(self):
        for command in ((), ("run", "--help"), ("replay", "--help"), ("compare", "--help"), ("list", "--help"),
                        ("trace", "import", "--help")):
            with self.subTest(command):
                outcome = self.kvtwin(*command)
                self.assertEqual(outcome.err, "")
                self.assertIn("kvtwin", outcome.out)
        self.assertTrue(self.kvtwin("--version").out.startswith("kvtwin 0."))

    def test_a_scenario_that_cannot_fit_is_refused_with_the_smallest_change_that_fits(self):
        small = ("run", SAMPLE, "--quiet", "--no-write", "--set=replay.sessions_max=2")
        short = small + ("--set=model.context_window=20000",)
        window = self.refused("smallest change", *short)
        change = window.err.partition("smallest change")[2]
        change = "--set=model.context_window=" + change.partition("--set=model.context_window=")[2].partition(";")[0]
        self.kvtwin(*small, change.strip())
        self.assertNotIn(" 0 rejected", self.kvtwin(*short, "--set=replay.oversized=reject").out)
        large = small + ("--set=model.name=llama-3.1-70b", "--set=hardware.node=h200-x8")
        self.refused("smallest change that fits: --set=engines.tensor_parallel=2", *large)
        self.kvtwin(*large, "--set=engines.tensor_parallel=2")

    def test_the_same_run_twice_writes_identical_bytes_and_its_log_replays(self):
        for out in ("a", "b"):
            run = self.kvtwin("run", SAMPLE, "--quiet", "--record", "--timeline=0..60", f"--out={out}")
            self.assertEqual(run.err, "")
        files = list((self.folder / "a").iterdir())
        self.assertEqual(len(files), 8)
        for file in files:
            self.check_same_files("a", "b", file.name)
            self.assertNotIn(str(self.folder).encode(), file.read_bytes())
        timeline = subprocess.run([PERFETTO_CHECK, "a/timeline.perfetto-trace"], capture_output=True, text=True)
        self.assertEqual((timeline.returncode, timeline.stderr), (0, ""))
        self.assertIn("counter gpu pages held\n", timeline.stdout)
        self.assertGreater(int(timeline.stdout.split()[0]), 100)  # slices
        self.assertIn('"same":true', self.kvtwin("replay", "a", "--format=jsonl").out)

        log = (self.folder / "a/log.binpb").read_bytes()
        self.write("cut.binpb", log[:len(log) // 2])
        self.assertTrue(self.kvtwin("replay", "cut.binpb", status=2).err.startswith("cut.binpb"))

    def test_every_eviction_order_replays_coalesced_or_not_with_hits_within_the_bound(self):
        found = set()
        orders = ("lru", "lfu", "session_aware", "cost_aware", "tool_ttl")
        for order in orders:
            with self.subTest(order):
                run = ("run", SAMPLE, "--quiet", "--record", "--format=jsonl", "--prefix-bound", "--force",
                       "--set=memory.gpu_pages=5000", f"--set=policies.prefix_eviction={order}")
                coalesced = self.kvtwin(*run, "--out=a").json
                self.kvtwin(*run, "--set=simulation.coalesce=false", "--out=b")
                self.check_same_files("a", "b", "log.binpb", "requests.csv")
                self.assertIn('"same":true', self.kvtwin("replay", "a", "--format=jsonl").out)
                self.assertGreater(coalesced["reused_tokens_first"], 0)
                self.assertLessEqual(coalesced["reused_tokens_first"], coalesced["reused_tokens_bound"])
                self.assertLessEqual(coalesced["reused_tokens_bound"], coalesced["admitted_prompt_tokens"])
                found.add(coalesced["reused_tokens_first"])
        self.assertEqual(len(found), len(orders))

    def test_the_resolved_scenario_of_a_result_repeats_it(self):
        self.kvtwin("run", SAMPLE, "--quiet", "--out=a", "--set=limits.requests_max=7", "--seed=3")
        self.kvtwin("run", "a/scenario.resolved.textproto", "--quiet", "--out=b")
        self.check_same_files("a", "b", "requests.csv", "run.binpb")

    def test_the_summary_has_its_two_numbers_first_and_its_attribution_sums(self):
        run = ("run", SAMPLE, "--quiet", "--no-write")
        table = self.kvtwin(*run).out
        self.assertTrue(table.startswith("coding_agents_small: "))
        for word in ("\n  llama-3.1-8b on 1 engine of 1 GPU (h200); trace coding_agents_small.kvtrace; room for "
                     "901,824 tokens", "\n  limited by nothing: GPU busy 8 %, requests queue", "ttft in a server's log",
                     "tpot", "e2e", "session, start to end", "throughput", "prefix reuse",
                     "preemptions               none", "KV pages, peak", "space lost in pages", "transfers",
                     "time of requests", "token counts of the trace", "step times from", "rejected",
                     "seed=42 decisions=", "repeat: kvtwin run"):
            self.assertIn(word, table)
        self.assertNotIn("after preemption", table)  # a line that does not apply is left out
        lines = self.kvtwin(*run, "--format=jsonl")
        self.assertTrue(lines.out.startswith('{"schema":1,'))
        parts = sum(lines.json[f"time_{part}_s"]
                    for part in ("queue", "transfer", "prefill", "recompute", "decode", "host"))
        self.assertNear(parts, lines.json["time_latency_s"], 1e-12)
        self.assertTrue(self.kvtwin(*run, "--format=json").out.startswith("{"))
        self.assertTrue(self.kvtwin(*run, "--format=csv").out.startswith("schema,version,scenario"))

    def test_a_run_compared_with_itself_has_no_differences_and_limits_decide_the_status(self):
        self.kvtwin("run", SAMPLE, "--quiet", "--out=a")
        self.kvtwin("run", SAMPLE, "--quiet", "--out=b", "--set=cost.host_ns_per_step=3000000")
        same = self.kvtwin("compare", "a", "a/requests.jsonl", "--limit=ttft.mean=0", "--format=csv")
        self.assertIn("ttft,mean,", same.out)
        other = self.kvtwin("compare", "b", "a/requests.jsonl", "--skip=30", "--limit=tpot.mean=1.0", status=1)
        self.assertIn("the first 30 are not scored", other.out)
        self.assertIn("limit 1 %", other.err)
        runs = self.kvtwin("compare", "a", "b")  # what differs in settings and results
        for word in ("cost.host_ns_per_step ", "  ttft_p99_ms ", " requests that both finished, "):
            self.assertIn(word, runs.out)
        self.kvtwin("compare", "a", "a", "--limit=ttft_p99=0", "--limit=prefix_reuse=0")
        self.assertIn("all decisions are the same", self.kvtwin("compare", "a", "a").out)
        self.kvtwin("compare", "a", "a/requests.jsonl", "--limit=tptf.mean=1", status=2)
        self.kvtwin("compare", "a", "a/requests.jsonl", "--skip=100000", status=2)

    def test_an_unwritable_output_path_is_an_environment_failure(self):
        self.write("file", "x")
        self.assertIn("file/dir", self.kvtwin("run", SAMPLE, "--quiet", "--out=file/dir", status=3).err)

    def test_a_run_writes_the_times_of_its_sessions_tools(self):
        self.kvtwin("run", SAMPLE, "--quiet", "--set=replay.sessions_max=2", "--out=run")

        def row(file, node):
            return next(row for row in rows_of(self.read(file))
                        if row["session"] == "coding-000000" and row["node"] == node)

        # The first session's first request, its tool, and the request that follows the tool.
        first, tool, after = row("run/requests.csv", "0"), row("run/tools.csv", "1"), row("run/requests.csv", "2")
        self.assertEqual(first["finished_ns"], tool["released_ns"])
        self.assertEqual(tool["kind"], "tool")
        self.assertLessEqual(int(tool["finished_ns"]), int(after["ready_ns"]))
        self.assertGreater(int(tool["finished_ns"]), int(tool["released_ns"]))
        self.assertEqual(after["agent"], "0")  # the first agent

    def test_shipped_scenarios_policies_models_and_nodes_are_listed(self):
        scenarios = self.kvtwin("list", "scenarios").out
        for name in ("coding_agents_small", "mooncake_conversation", "azure_conversation", "weka_h200_host",
                     "vllm_rtx4090_llama8b", "methods/freekv"):
            self.assertIn(name, scenarios)
        policies = self.kvtwin("list", "policies").out
        self.assertTrue(policies.startswith("policies.scorer"))
        for method in ("quest", "arkvale", "shadowkv", "infinigen", "freekv", "resident"):
            self.assertIn("  " + method, policies)
        self.assertIn("llama-3.1-8b", self.kvtwin("list", "models").out)
        self.assertIn("h200", self.kvtwin("list", "nodes").out)


class Reports(CommandLine):
    def test_a_report_takes_validations_and_qualities(self):
        good = self.kvtwin("report", SOURCE / "tests/unit/reports_data", "--out=r.md")
        self.assertIn("1 validation, 1 evaluation", good.out)
        self.assertIn("| snapkv | 64 |", self.read("r.md"))
        self.assertIn("same decisions", self.read("r.md"))
        # An empty cell of an optional column is no figure: here no interval, rather than one from 0 to 0.
        self.write("open.csv", "policy,budget,task,accuracy,accuracy_low,accuracy_high,kv_bytes_mean\n"
                               "full,0,a,0.75,,,1e6\nsnapkv,64,a,0.5,0.4,0.6,1e5\n")
        self.kvtwin("report", "open.csv", "--out=o.md")
        self.assertIn("| full | all | 75.0 % |", self.read("o.md"))
        self.assertIn("| snapkv | 64 | 50.0 % [40 60] |", self.read("o.md"))
        self.write("mine.csv", "policy,budget,task,refused,accuracy,kv_bytes_mean\n"
                               'full,0,a,,0.75,1e6\nquest,0,a,"cannot, by far",,\n')
        self.kvtwin("report", "mine.csv", "--out=q.md")
        self.assertIn("| full | all | 75.0 % |", self.read("q.md"))

    def test_an_imported_run_appears_in_a_report_with_kvtwins_and_is_compared(self):
        self.write("bench.json", '{"model_id":"real","duration":4.0,"input_lens":[10,20],"output_lens":[3,2],'
                                 '"ttfts":[0.5,0.25],"itls":[[0.1,0.3],[0.2]],"start_times":[100.0,101.0]}')
        self.kvtwin("import", "bench.json", "--out=real")
        self.kvtwin("run", SAMPLE, "--quiet", "--out=ours")
        self.kvtwin("report", "real", "ours", "--out=r.md")
        self.assertIn("| TTFT median, ms | 250 |", self.read("r.md"))
        self.kvtwin("report", "real", "ours", "--slo=ttft_p99<300ms", "--slo=ttft<1h", "--slo=goodput>=50%",
                    "--out=r.html")
        # The figure, the used fraction of the limit, and the verdict: TTFTs of 250 and 500 ms.
        self.assertIn('"slos":[[500.0,1.6666666666666667,false],[1.0,0.0,true]]', self.read("r.html"))
        bad = self.kvtwin("report", "real", "--slo=ttft_p99<300", "--out=r.html", status=2)
        self.assertEqual(bad.err, "--slo=ttft_p99<300: 300 has no unit; ns, us, ms, s, min or h\n")
        self.kvtwin("compare", "real", "real/requests.jsonl", "--limit=ttft.mean=0.01")
        self.kvtwin("import", "bench.json", "--out=real", "--format=csv", status=2)
        self.assertIn("--before=FILE", self.kvtwin("import", "--help").out)

    def test_with_an_earlier_scrape_a_servers_counters_are_differences(self):
        def scrape(name, short, count, total):
            figures = {'bucket{le="0.1"}': short, 'bucket{le="0.5"}': count, 'bucket{le="+Inf"}': count,
                       "sum": total, "count": count}
            self.write(name, "".join(f"vllm:time_to_first_token_seconds_{key} {value}\n"
                                     for key, value in figures.items()))

        def median(*more):
            self.kvtwin("import", "after.txt", "--format=prometheus", "--seconds=10", "--force", "--out=scraped", *more)
            self.kvtwin("report", "scraped", "--out=scraped.md")
            return float(self.read("scraped.md").partition("| TTFT median, ms | ")[2].split()[0])

        scrape("before.txt", 2, 2, 0.1)
        scrape("after.txt", 4, 10, 2.5)
        # Eight since the first scrape: two up to 0.1 s, six from there to 0.5 s; the fourth is a third of the way.
        self.assertNear(median("--before=before.txt"), 233, 0.01)
        self.assertNear(median(), 167, 0.01)  # the fifth of ten: a sixth of the way
        self.refused("--before", "import", "before.txt", "--format=prometheus", "--before=after.txt", "--out=wrong")


main()
