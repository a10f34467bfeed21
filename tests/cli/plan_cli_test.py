#!/usr/bin/env python3
"""kvtwin plan, compared with brute force."""

import json

from program import SHIPPED, CommandLine, main

SAMPLE = SHIPPED / "coding_agents_small.textproto"
# Without pauses, so that the population equals the load of the GPUs.
COMMON = ("--set=replay.arrivals=fixed_population", "--set=replay.mode=closed_loop", "--set=replay.think_cap_s=1",
          "--set=replay.tool_scale=0", "--set=hardware.nodes=0", "--set=replay.replicas=2")


class Plan(CommandLine):
    def plan(self, *more, **how):
        return self.kvtwin("plan", SAMPLE, *COMMON, "--out=p", *more, **how)

    def roofline(self, *more, **how):
        return self.plan("--quiet", "--allow-roofline", "--seeds=1", *more, **how)

    def ttft_p90(self, choices, population):
        run = self.kvtwin("run", SAMPLE, "--no-write", "--quiet", "--format=jsonl", *COMMON,
                          *(f"--set={name}={value}" for name, value in choices.items()),
                          f"--set=replay.population={population}")
        return run.json["ttft_p90_ms"]

    def test_agrees_with_brute_force_on_a_coarse_grid_of_loads(self):
        words = ("--allow-roofline", "--seeds=1", "--vary=hardware.node=h200,l40s", "--vary=engines.count=1,2",
                 "--slo=ttft_p90<1500ms", "--load=replay.population=1..32", "--need=8")
        plan = self.plan("--quiet", "--format=json", *words, status=None)
        self.assertIn(plan.status, (0, 1), plan.err)
        answer = plan.json
        self.assertEqual(len(answer["candidates"]), 4)
        narrowed, holding = 0, []
        for candidate in answer["candidates"]:
            with self.subTest(candidate["name"]):
                def keeps(load):
                    return self.ttft_p90(candidate["choices"], load) <= 1500

                kept = {load: keeps(load) for load in (2, 4, 8, 16, 32)}
                broken = min((load for load in kept if not kept[load]), default=1e9)
                held = max((load for load in kept if kept[load] and load < broken), default=0)
                self.assertEqual(candidate["holds"], kept[8])
                # The plan's limit is between the last load of the grid that holds and the first that breaks.
                up_to, breaks_at = candidate["up_to"], candidate["breaks_at"]
                self.assertTrue(held <= up_to < broken, (held, up_to, broken))
                # The interval is as narrow as requested, and both of its ends are correct.
                if up_to > 0:
                    self.assertTrue(keeps(up_to))
                if breaks_at > 0:
                    self.assertFalse(keeps(breaks_at))
                if up_to > 0 and breaks_at > 0:
                    self.assertTrue(0 < breaks_at - up_to <= max(1.0, 0.05 * up_to), (up_to, breaks_at))
                    narrowed += 1
                if kept[8]:
                    holding.append((candidate["usd_per_hour"], candidate["name"]))
        self.assertGreater(narrowed, 0)
        cheapest = min(holding, key=lambda one: one[0])[1]
        self.assertEqual(answer["best"], cheapest)
        again = self.plan(*words, status=plan.status)  # a repetition finds all results
        self.assertIn(" 0 runs now, ", again.err)
        self.assertNotIn(" 0 runs now, 0 found", again.err)
        self.assertIn(cheapest + " holds population = ", again.out)

    def test_the_table_has_the_varied_fields_the_achieved_values_and_the_reason_and_the_cost_has_a_curve(self):
        words = ("--vary=engines.routing=round_robin,session_affine", "--vary=hardware.node=h200,l40s",
                 "--set=engines.count=2", "--slo=ttft_p90<1500ms", "--load=replay.population=1..16", "--need=4")
        answer = self.roofline("--format=json", *words, status=None).json
        self.assertIn("routing  node  gpus   $/h  holds  up to  ttft_p90<1500ms at 4",
                      self.roofline(*words, status=None).out)
        curve = answer["cost_curve"]
        self.assertTrue(curve)
        for before, after in zip(curve, curve[1:]):
            self.assertGreater(after["up_to"], before["up_to"])
            self.assertGreaterEqual(after["usd_per_hour"], before["usd_per_hour"])
        for candidate in answer["candidates"]:
            self.assertEqual("nearest_promise" in candidate, not candidate["holds"], candidate)
        # Round robin finds fewer prefixes, and the plan names that.
        turns = next(one for one in answer["candidates"] if one["choices"]["engines.routing"] == "round_robin" and
                     one["choices"]["hardware.node"] == "h200")
        self.assertIn("engines.routing=session_affine", turns["reuse"])

    def test_refuses_unmeasured_hardware_and_names_the_nearest_promise_that_is_kept(self):
        load = "--load=replay.population=1..4"
        refused = self.plan("--quiet", "--slo=ttft_p90<1s", load, "--need=1", "--seeds=1", status=2)
        self.assertTrue(refused.out.startswith("Not judged: "))
        self.assertIn("100 % of its step time is not measured", refused.out)
        self.assertIs(json.loads(self.read("p/plan.json"))["not_judged"], True)
        at_two = ("--quiet", "--allow-roofline", load, "--need=2")
        none = self.plan(*at_two, "--slo=ttft_p90<1us", status=1).out
        for part in ("No candidate holds population = 2", "None holds even 1.", "   <1  "):
            self.assertIn(part, none)
        # The nearest promise is one that the candidate keeps.
        self.assertIn("The nearest promise at 2: --slo='ttft_p90<=", none)
        promise = none.partition("The nearest promise at 2: --slo='")[2].partition("'")[0]
        self.plan(*at_two, f"--slo={promise}")
        # Its page: the folder has the answer, and a report draws it.
        self.kvtwin("report", "p", "--out=q.md")
        self.assertIn("| ttft_p90<", self.read("q.md"))
        answer = json.loads(self.read("p/plan.json"))
        self.assertEqual(len(answer["table"]), len(answer["candidates"]) + 1)
        self.assertTrue(answer["command"].startswith("kvtwin plan "))
        # The sessions' own pauses are the cause here.
        sessions = self.plan(*at_two, "--slo=session_p90<1s", "--set=replay.tool_scale=1",
                             "--set=replay.think_cap_s=600", status=None)
        self.assertIn("breaks at 1, the least that was asked: tools and think time of the sessions", sessions.out)

    def test_a_bound_of_load_is_no_capacity(self):
        words = ("--slo=ttft_p90<1h", "--load=replay.population=1..3", "--need=2")
        text = self.roofline(*words).out
        for part in ("holds population of at least 3, the most that was asked (2 needed, margin at least 50 %)",
                     "nothing breaks up to 3, the most that was asked", "  >=3  "):
            self.assertIn(part, text)
        answer = self.roofline("--format=json", *words).json
        self.assertIs(answer["holds_more"], True)
        self.assertEqual(answer["candidates"][0]["up_to_text"], ">=3")

    def test_given_prices_decide_and_the_answer_says_that_they_are_given(self):
        words = ("--vary=hardware.node=h200,h100", "--slo=ttft_p90<1h", "--load=replay.population=1..2", "--need=1")
        priced = words + ("--price=h200=0.5",)

        def h200(answer):
            return next(one for one in answer["candidates"] if one["name"] == "hardware.node=h200")

        before, after = self.roofline("--format=json", *words).json, self.roofline("--format=json", *priced).json
        self.assertEqual(before["best"], "hardware.node=h100")
        self.assertEqual(after["best"], "hardware.node=h200")
        before, after = h200(before), h200(after)
        self.assertEqual((after["usd_per_hour"], after["price_given"]), (0.5, True))
        figure = "usd_per_million_output_tokens"
        self.assertNear(before[figure], before["usd_per_hour"] / 0.5 * after[figure], 1e-5)
        self.assertIn("1 GPU, 0.50 $/h (given), ", self.roofline(*priced).out)
        self.assertIn("'--price=h200=0.5'", json.loads(self.read("p/plan.json"))["command"])

    def test_the_price_counts_gpus_in_use_and_the_answer_names_the_nodes_that_hold_them(self):
        text = self.roofline("--set=hardware.node=h200-x8", "--set=engines.count=3", "--set=engines.tensor_parallel=4",
                             "--slo=ttft_p90<1h", "--load=replay.population=1..2", "--need=1").out
        self.assertIn("12 GPUs of 2 nodes, 42.00 $/h (assumed)", text)
        self.assertIn("The price is of the 12 GPUs in use; all 16 GPUs of the 2 nodes are 56.00 $/h.", text)

    def test_of_candidates_with_equal_price_the_one_with_more_margin_is_the_best(self):
        answer = self.roofline("--format=json", "--vary=memory.gpu_pages=6000,20000", "--slo=ttft_p90<1500ms",
                               "--load=replay.population=1..32", "--need=1").json
        many, few = answer["candidates"]
        self.assertIs(few["holds"], True)
        self.assertEqual(few["usd_per_hour"], many["usd_per_hour"])
        self.assertGreater(many["up_to"], few["up_to"])
        self.assertEqual(answer["best"], "memory.gpu_pages=20000")

    def test_progress_without_a_terminal_and_a_fleet_that_is_mostly_idle_is_noted(self):
        no_pauses = "--set=replay.think_cap_s=0"
        plan = self.plan("--slo=ttft_p90<1h", "--load=replay.population=20..40", "--need=40", no_pauses,
                         "--allow-roofline", "--seeds=1", status=None)
        self.assertIn("plan: round 1, 0 of 1 run; 0 made, 0 found, 0 s", plan.err)
        self.assertIn("Note: at 40, on average ", plan.out)
        idle = " of 40 sessions were in flight, because the trace has only 48"
        self.assertIn(idle, plan.out)

        def run(population):
            return self.kvtwin("run", SAMPLE, "--no-write", "--quiet", *COMMON, no_pauses,
                               f"--set=replay.population={population}").out

        self.assertIn(idle, run(40))
        self.assertNotIn("sessions were in flight", run(2))


main()
