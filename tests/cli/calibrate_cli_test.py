#!/usr/bin/env python3
"""kvtwin calibrate policy and inspect-policy: profiles measured on real data, and scenarios that use them."""

import collections
import re

from program import METHOD_DIR, SHIPPED, CommandLine, main

SCENARIO = SHIPPED / "search_tiny.textproto"
SNAPKV = "--set=policies.scorer=snapkv"
PROFILE = "--set=simulation.retained=profile"
LAYERS = 4


def numbers(text, name):
    """Numbers of `name: [1, 2]`."""
    return [float(word) for word in re.search(rf"^{name}: \[(.*?)\]", text, re.M | re.S).group(1).split(",")]


class Calibrate(CommandLine):
    def calibrate(self, what, *more):
        """Few contexts, unless the test gives a number."""
        few = [word for word in ("--contexts=3", "--context-max=1100")
               if not any(given.startswith(word.split("=")[0] + "=") for given in more)]
        return self.kvtwin("calibrate", "policy", what, SCENARIO, *few, *more)

    def simulate(self, *more, **how):
        return self.kvtwin("run", SCENARIO, "--quiet", "--no-write", "--format=jsonl", *more, **how)

    def reserved(self, profile, *more, **how):
        """A run that retains by a profile."""
        return self.simulate(SNAPKV, "--set=policies.scorer_options.compression_trigger=chunk_end",
                             "--set=policies.budget=reserved", "--set=policies.layout=ragged",
                             "--set=policies.identity=none", "--set=limits.prefix_cache=false",
                             "--set=limits.step_tokens_max=4096", "--set=policies.layout_options.heads_per_group=2",
                             f"--set=policies.budget_options.profile={self.folder}/{profile}", *more, **how)

    def test_budgets_retain_the_requested_ratio_reproducibly_and_a_scenario_runs_on_them(self):
        made = self.calibrate("budgets", SNAPKV, "--ratio=0.3", "--out=budgets.textproto")
        self.assertIn("reserved / kept", made.out)
        text = self.read("budgets.textproto")
        self.assertEqual(text, self.calibrate("budgets", SNAPKV, "--ratio=0.3").out)
        self.assertNotIn("\nkept:", text)
        # The mean over heads of the fraction retained outside the window: (ratio n - window) / n, within one KV entry
        # per layer.
        mu, contexts = numbers(text, "mu"), numbers(text, "context_tokens")
        self.assertEqual((len(mu), len(contexts)), (8, 3))
        self.assertNear(sum(mu) / 8, sum((0.3 * n - 32) / n for n in contexts) / 3, 0.005)
        self.assertEqual(len(numbers(text, "fraction_mu")), 8)
        self.assertEqual(len(numbers(text, "budget_q32")), 8)

        ran = self.reserved("budgets.textproto", PROFILE).json
        self.assertEqual((ran["requests_finished"], ran["requests_rejected"]), (51, 0))
        fractions = self.reserved("budgets.textproto", "--set=policies.budget_options.relative=true",
                                  "--set=policies.budget_options.ratio=0.5").json
        self.assertNotEqual(fractions["decisions"], ran["decisions"])
        # The profile's content is an input of the run.
        self.calibrate("budgets", "--set=policies.scorer=knorm", "--out=other.textproto")
        self.assertNotEqual(self.reserved("other.textproto", PROFILE).json["inputs"], ran["inputs"])

    def test_one_threshold_over_all_layers_moves_kv_entries_between_layers_one_per_layer_does_not(self):
        def layer_means(*more):
            mu = numbers(self.calibrate("budgets", "--set=policies.scorer=kvzip",
                                        "--set=policies.scorer_options.repeat_tokens=256", *more).out, "mu")
            return [(one + other) / 2 for one, other in zip(mu[::2], mu[1::2])]

        def spread(means):
            return max(abs(mean - means[0]) for mean in means)

        each, all_layers = layer_means(), layer_means("--all-layers")
        self.assertNear(sum(each), sum(all_layers), 0.01)
        self.assertLess(spread(each), 1e-9)
        self.assertGreater(spread(all_layers), 0.01)

    def test_retention_stores_the_fractions_of_every_context_and_is_read_back(self):
        self.calibrate("retention", SNAPKV, "--out=retention.textproto")
        text = self.read("retention.textproto")
        kept, mu = numbers(text, "retained"), numbers(text, "mu")
        self.assertEqual(len(kept), 3 * 8)
        for head in range(8):
            self.assertNear(sum(kept[head::8]) / 3, mu[head], 1e-5)
        self.reserved("retention.textproto", PROFILE)

    def test_precision_finds_a_tag_map_that_a_scenario_can_name(self):
        def precision(*more):
            return self.calibrate("precision", "--rows=8", "--layers=2", *more).out

        self.assertIn("current text inst", precision("--bits=2.7", "--out=tags.textproto"))
        text = self.read("tags.textproto")
        self.assertEqual(text, precision("--bits=2.7"))
        # Every tag that occurs loses less with 4 bits; with a budget of 4 bits no tag has 2.
        self.assertIn("2 bits: 0.0 % of the tokens", precision("--bits=4", "--out=all.textproto"))
        self.assertIn("2 bits: 100.0 % of the tokens", precision("--bits=2", "--out=none.textproto"))

        def four_bits(blind):
            """By tag. A map that is blind to an axis has equal bits along it."""
            done = precision("--bits=3", f"--blind={blind}")
            four = set(numbers(done, "four_bit_tags"))
            return [tag in four for tag in range(56)]

        # With a chat template, tags are read from token ids, so its delimiters have one too.
        self.assertNotIn(" delim ", precision("--bits=3"))
        self.assertIn(" delim ", precision("--bits=3", "--set=replay.chat_template=mistral", "--out=chat.textproto"))
        no_time, no_meaning = four_bits("temporal"), four_bits("semantic")
        self.assertEqual(no_time, [no_time[tag % 14] for tag in range(56)])
        self.assertEqual(no_meaning, [no_meaning[tag - tag % 7] for tag in range(56)])
        self.assertNotEqual(four_bits("none"), no_meaning)
        self.simulate("--set=policies.precision=triaxial", "--set=memory.page_tokens=32",
                      "--set=policies.precision_options.ageing=forecast",
                      f"--set=policies.precision_options.tag_map={self.folder}/tags.textproto")

    def test_retrieval_finds_corrections_and_misses_that_a_simulated_run_reproduces(self):
        scenario = METHOD_DIR / "tiny/freekv.textproto"
        words = ("calibrate", "policy", "retrieval", scenario, "--contexts=2", "--steps=24")
        self.kvtwin(*words, "--out=recall.textproto")
        text = self.read("recall.textproto")
        self.assertEqual(text, self.kvtwin(*words).out)
        tau, rates, misses = numbers(text, "tau"), numbers(text, "correction_rate"), numbers(text, "miss_rate")
        self.assertEqual([len(tau), len(rates), len(misses)], [41, LAYERS * 41, LAYERS])
        self.assertEqual(misses[0], 0)  # layers_dense: 1
        by_layer = [rates[layer * 41:(layer + 1) * 41] for layer in range(LAYERS)]
        similar = numbers(text, "similarity")
        for layer in range(1, LAYERS):
            self.assertEqual(by_layer[layer], sorted(by_layer[layer]))
            self.assertTrue(0 < misses[layer] < 1, misses)
            self.assertLessEqual(abs(similar[2 * layer]), 1)
        self.assertEqual(tau[20], 0)  # the scenario's
        expected = {"retrieval_correction_rate": sum(rates[20] for rates in by_layer[1:]) / 3,
                    "retrieval_miss_rate": sum(misses[1:]) / 3}
        run = ("run", scenario, "--no-write", "--quiet", "--format=jsonl")
        with_profile = run + ("--backend=sim", f"--set=simulation.retrieval.profile={self.folder}/recall.textproto")
        by_profile = with_profile + ("--set=simulation.retrieval.outcomes=profile",)
        ran = self.kvtwin(*by_profile).json
        # The CPU engine has the same rates; it reads only the pages that it selected.
        natural = self.kvtwin(*run, "--backend=cpu", "--clock=virtual").json
        for rate, value in expected.items():
            self.assertNear(ran[rate], value, 0.15)
            self.assertNear(ran[rate], natural[rate], 0.1)
        always = self.kvtwin(*by_profile, "--set=policies.retrieval_options.tau=1.5").json
        self.assertEqual(always["retrieval_correction_rate"], 1)
        self.refused("a profile is not read with outcomes fixed", *with_profile,
                     "--set=simulation.retrieval.outcomes=fixed")
        self.refused("freekv-llama-4x256 has 4 layers of 2 KV heads, llama-3.1-8b has 32 of 8", *by_profile,
                     "--set=model.name=llama-3.1-8b")

    def test_a_profile_that_does_not_belong_to_the_scenario_is_refused(self):
        self.write("requests.csv",
                   "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00.000000,300,4\n")
        self.calibrate("budgets", "--set=policies.scorer=knorm", "--out=p")
        for message, *words in (
                ("ratio is 0.5, knorm-llama-4x256 was made at 0.3", "p", "--set=policies.budget_options.ratio=0.5"),
                ("profile cannot be combined with mean or deviation", "p", "--set=policies.budget_options.mean=0.5"),
                ("does not exist", "none.textproto"),
                ("policies.budget_options.profile", "requests.csv"),
                ("knorm-llama-4x256 has 4 layers of 2 KV heads, the engine has 32 of 8", "p",
                 "--set=model.name=llama-3.1-8b", "--set=memory.gpu_pages=20000")):
            with self.subTest(message):
                self.assertIn(message, self.reserved(*words, status=2).err)


class Inspect(CommandLine):
    def inspect(self, *more):
        return self.kvtwin("inspect-policy", SCENARIO, "--contexts=3", "--context-max=1100", "--budgets=64,256",
                           "--response=16", "--error-tokens=4", *more)

    def test_the_oracle_hits_everything_random_hits_by_chance_and_larger_budgets_lose_less(self):
        words = ("--scorers=oracle,snapkv,knorm,random", "--format=csv")
        csv = self.inspect(*words)
        self.assertEqual(csv.out, self.inspect(*words).out)
        self.assertTrue(csv.out.startswith("scorer,budget,layer,contexts,hit_rate,floor,error\n"))
        sums = collections.defaultdict(collections.Counter)
        for row in csv.rows:
            one = sums[row["scorer"], int(row["budget"])]
            one.update({name: float(row[name]) for name in ("hit_rate", "floor", "error")})
            one["rows"] += 1
        self.assertEqual(len(sums), 8)
        for budget in (64, 256):
            oracle, random = sums["oracle", budget], sums["random", budget]
            self.assertEqual((oracle["rows"], oracle["hit_rate"]), (4, 4.0))
            self.assertNear(random["hit_rate"], random["floor"], 0.25)
        for scorer in ("oracle", "snapkv", "knorm", "random"):
            few, many = sums[scorer, 64], sums[scorer, 256]
            self.assertLess(few["floor"], many["floor"])
            self.assertGreater(few["error"], many["error"])
        table = self.inspect("--scorers=oracle,random").out
        self.assertIn("100.00 % +-  0.00", table)
        margin = float(table.partition("\n  random ")[2].partition("+-")[2].split()[0])
        self.assertTrue(0 < margin < 10, margin)
        self.assertIn("weights drawn from seed 42", table)
        json = self.inspect("--scorers=random", "--format=json").out
        self.assertTrue(json.startswith('[{"scorer":"random","budget":64,"layer":0,"contexts":3,"hit_rate":0.'), json)


main()
