#!/usr/bin/env python3
"""kvtwin validate: real runs (of the CPU engine here) recorded, replayed, priced and simulated."""

import re

from program import MODELS, SHIPPED, SOURCE, CommandLine, main

SCENARIO = SHIPPED / "search_tiny.textproto"
SNAPKV = SOURCE / "scenarios/suites/validation/snapkv.textproto"


class Validate(CommandLine):
    def validate(self, *more, **how):
        return self.kvtwin("validate", *more, "--quiet", **how)

    def test_recordings_validate_again_without_a_run(self):
        search = (SCENARIO, "--set=replay.sessions_max=1")
        # The roofline of an H200 does not fit this machine: figures are far outside.
        made = self.validate(*search, "--out=v", "--backend=cpu", "--repeats=2", "--format=json", status=1).out
        self.assertEqual(made, self.read("v/validation.json"))
        for part in ('"same": true', '"repeat": "2"', '"verdict": "outside"'):
            self.assertIn(part, made)
        self.assertNotIn('"same": false', made)
        self.assertNotIn(str(SOURCE), self.read("v/search_tiny/1/run.binpb"))  # no absolute path is stored

        self.assertEqual(self.validate(*search, "--recorded=v", "--format=json", status=1).out, made)
        self.assertIn("same decisions  2 of 2 real runs", self.validate(*search, "--recorded=v", status=1).out)
        # A baseline of itself: nothing is worse.
        self.validate(*search, "--recorded=v", "--baseline=v/validation.json")

    def test_a_scenario_that_cannot_be_read_is_named_and_the_others_are_validated(self):
        lacking = self.write("lacking.textproto", 'model { name: "llama-3.1-8b" }\nhardware { node: "h200" }\n'
                                                  'trace { path: "absent.csv" format: "azure" }\n')
        for source in ("--out=v", "--recorded=v"):
            outcome = self.validate(lacking, SCENARIO, source, "--backend=cpu", "--repeats=1", status=2)
            self.assertIn("absent.csv", outcome.err)
            self.assertIn("1 of 2 scenarios were not validated", outcome.err)
            self.assertIn("same decisions  1 of 1 real runs", outcome.out)


class CalibrateOperations(CommandLine):
    def test_operations_follow_from_recorded_runs_and_errors_name_the_missing_input(self):
        words = ("calibrate", "device", f"--scenario={SNAPKV}", "--quiet", f"--operations={MODELS}/measured/h200.textproto")
        self.refused("holds no recording", *words, "--recorded=none")
        learnt = self.kvtwin(*words, f"--recorded={SOURCE}/tests/golden/h200", "--out=learnt.textproto")
        self.assertIn("entry retained", learnt.out)
        self.assertIn('price { of: "entry retained"', self.read("learnt.textproto"))
        # The prices are read back.
        again = self.kvtwin("run", SNAPKV, "--quiet", "--no-write",
                            f"--set=cost.profile={self.folder}/learnt.textproto")
        self.assertNotIn("was not measured", again.out)

    def test_a_run_at_the_ends_of_its_steps_ranges_lies_around_the_expected_one(self):
        low, expected, high = [self.kvtwin("run", SNAPKV, "--quiet", "--no-write", "--format=jsonl", f"--set=cost.step_times={end}").json
                               for end in ("low", "expected", "high")]
        for figure in ("elapsed_s", "tpot_mean_ms", "ttft_mean_ms"):
            self.assertLess(low[figure], expected[figure])
            self.assertLess(expected[figure], high[figure])

    def test_a_profile_without_operations_takes_those_of_other_gpus_and_says_so(self):
        device = (MODELS / "measured" / "h100.textproto").read_text()
        alone = self.folder / "device.textproto"
        alone.write_text(re.sub(r"^operations \{.*?^\}\n", "", device, flags=re.S | re.M))
        run = self.kvtwin("run", SNAPKV, "--quiet", "--no-write", f"--set=cost.profile={alone}")
        self.assertIn("what methods add to steps was not measured", run.out)


main()
