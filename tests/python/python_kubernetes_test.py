"""Kubernetes manifests: against the API's schema, and as commands, which are run here as a cluster would."""

import copy
import json
import os
import subprocess
import sys
import tempfile
import unittest

import support

support.skip_without("jsonschema")
import jsonschema  # noqa: E402

import batch_v1_schema as schema  # noqa: E402
from kvtwin import Error  # noqa: E402
from kvtwin.kubernetes import manifests  # noqa: E402

PLACE = {"image": "registry.example/kvtwin:1", "claim": "results"}
SWEEP = ["sweep", support.SMALL, "--vary=seed=1..5+1", "--set=replay.sessions_max=4"]


def check(manifest, of):
    jsonschema.Draft202012Validator(of).validate(manifest)


def run_pod(container, root, index=None):
    """Runs a pod's process with the volume's folder below `root`. Returns what it printed."""
    def moved(word):
        return word.replace("$$(", "$(").replace("/kvtwin/", root + "/kvtwin/").replace("/scenario/", root + "/scenario/")

    os.makedirs(root + "/kvtwin", exist_ok=True)
    environment = {**os.environ, "PATH": os.path.dirname(support.TOOL) + ":" + os.environ["PATH"]}
    if index is not None:
        environment["JOB_COMPLETION_INDEX"] = str(index)
    words = [*container["command"], *(moved(word) for word in container["args"])]
    return subprocess.run(words, cwd=root + "/kvtwin", env=environment, capture_output=True, text=True, check=False)


class Manifests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_all(self, made):
        """Runs all shards and then the collecting pod, as the cluster would. Returns the latter."""
        job = made["shards"]["items"][-1]
        for item in made["shards"]["items"][:-1]:
            os.makedirs(self.folder + "/scenario", exist_ok=True)
            for name, text in item["data"].items():
                with open(f"{self.folder}/scenario/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
        for index in range(job["spec"]["completions"]):
            ran = run_pod(job["spec"]["template"]["spec"]["containers"][0], self.folder, index)
            self.assertEqual(ran.returncode, 0, ran.stderr)
        return run_pod(made["collect"]["spec"]["template"]["spec"]["containers"][0], self.folder)

    def test_schema(self):
        path = os.path.join(self.folder, "mine.textproto")
        with open(path, "w", encoding="utf-8") as file:
            file.write('model { name: "llama-3.1-8b" }\n')
        for words in (SWEEP, ["sweep", path, "--vary=seed=1,2"], ["evaluate", "quality/full", "quality/snapkv"]):
            made = manifests(words, **PLACE, tasks=3, cpus=4, name="my-sweep", check=False)
            check(made["shards"], schema.LIST)
            check(made["collect"], schema.JOB)
            job = made["shards"]["items"][-1]
            self.assertEqual((job["spec"]["completionMode"], job["spec"]["completions"]), ("Indexed", 3))
            # Every mounted volume is there.
            for one in (job, made["collect"]):
                pod = one["spec"]["template"]["spec"]
                self.assertEqual([mount["name"] for mount in pod["containers"][0]["volumeMounts"]],
                                 [volume["name"] for volume in pod["volumes"]])
        self.assertEqual(made["shards"]["items"][0]["kind"], "Job")

    def test_the_schema_finds_mistakes(self):
        good = manifests(SWEEP, **PLACE, tasks=3)["shards"]["items"][-1]
        check(good, schema.JOB)

        def broken(change):
            bad = copy.deepcopy(good)
            change(bad["spec"], bad["spec"]["template"]["spec"])
            with self.assertRaises(jsonschema.ValidationError):
                check(bad, schema.JOB)

        broken(lambda job, pod: job.pop("completions"))
        broken(lambda job, pod: job.update(completionMode="indexed"))
        broken(lambda job, pod: job.update(completion=3))
        broken(lambda job, pod: job.update(parallelism="3"))
        broken(lambda job, pod: pod.update(restartPolicy="Always"))
        broken(lambda job, pod: pod.update(restartPolicy="OnFailure"))  # with a pod failure policy
        broken(lambda job, pod: pod["volumes"][0].update(configMap={"name": "two-sources"}))
        broken(lambda job, pod: pod["containers"][0]["resources"]["limits"].update(memory="2 GB"))
        broken(lambda job, pod: pod.update(containers=[]))

    def test_shards_and_collection_equal_one_sweep(self):
        collected = self.run_all(manifests(SWEEP, **PLACE, tasks=3, name="my-sweep"))
        self.assertEqual(collected.returncode, 0, collected.stderr)
        whole, _ = support.tool(*SWEEP, "--out=" + self.folder + "/whole", "--quiet")
        self.assertEqual(collected.stdout, whole)
        self.assertTrue(os.path.exists(self.folder + "/kvtwin/my-sweep/index.sqlite"))

    def test_scenario_file_and_failed_point(self):
        path = os.path.join(self.folder, "mine.textproto")
        trace = os.path.join(support.SOURCE, "traces/data/coding_agents_small.kvtrace")
        with open(path, "w", encoding="utf-8") as file:
            file.write('model { name: "llama-3.1-8b" }\nhardware { node: "h200" }\nreplay { sessions_max: 4 }\n'
                       f'trace {{ path: "{trace}" format: "kvtwin" }}\n')
        made = manifests(["sweep", path, "--vary=limits.requests_max=4,-1,8"], **PLACE, tasks=2)
        self.assertEqual(made["shards"]["items"][0]["kind"], "ConfigMap")
        collected = self.run_all(made)
        self.assertEqual(collected.returncode, 1, collected.stderr)  # one point failed, as in a sweep on one machine
        self.assertEqual(collected.stdout.count("done"), 2)

    def test_status_of_a_wrong_command_fails_the_job(self):
        made = manifests(["sweep", support.SMALL, "--vary=limits.nonsense=1,2"], **PLACE, tasks=2, check=False)
        job = made["shards"]["items"][-1]["spec"]
        status = run_pod(job["template"]["spec"]["containers"][0], self.folder, 0).returncode
        self.assertEqual(status, 2)
        self.assertEqual(job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"], [status])

    def test_evaluation(self):
        words = ["evaluate", "quality/full", "quality/streaming_llm", "--tasks=needle", "--budgets=32", "--questions=4"]
        collected = self.run_all(manifests(words, **PLACE, tasks=2, name="quality"))
        self.assertEqual(collected.returncode, 0, collected.stderr)
        whole, _ = support.tool(*words, "--out=" + self.folder + "/whole", "--quiet")
        self.assertEqual(collected.stdout, whole)

    def test_words_reach_the_tool_unchanged(self):
        word = "--set=description=$(HOME) $HOME 'a' \"b\""
        job = manifests([*SWEEP, word], **PLACE, tasks=2)["shards"]["items"][-1]
        container = dict(job["spec"]["template"]["spec"]["containers"][0])
        container["command"] = [part.replace('kvtwin "$@"', 'printf "%s\\n" "$@"') for part in container["command"]]
        self.assertIn(word, run_pod(container, self.folder, 1).stdout.splitlines())
        self.assertIn("--shard=1/2", run_pod(container, self.folder, 1).stdout.splitlines())

    def test_errors(self):
        for words, more, message in [
                (["run", support.SMALL], {}, "cannot split the command 'run'; sweep or evaluate"),
                ([*SWEEP, "--out=here"], {}, "--out=here is given; leave it out"),
                (SWEEP, {"tasks": 0}, "tasks: is 0; 1 at least"),
                (SWEEP, {"name": "My_Sweep"}, 'name: is "My_Sweep"'),
                (SWEEP, {"claim": "Bad_Name"}, 'claim: is "Bad_Name"'),
                (SWEEP, {"memory": "lots"}, 'memory: is "lots"'),
                (["sweep", "coding_agents_smal", "--vary=seed=1,2"], {}, 'did you mean "coding_agents_small"?'),
                (["sweep", support.SMALL, "--vary=limits.requests_mux=1,2"], {}, 'did you mean "requests_max"?')]:
            with self.assertRaises(Error) as raised:
                manifests(words, **{**PLACE, "tasks": 2, **more})
            self.assertIn(message, str(raised.exception))

    def test_command(self):
        words = [sys.executable, "-m", "kvtwin.kubernetes", "--image=kvtwin", "--claim=results", "--tasks=4"]
        ran = subprocess.run([*words, *SWEEP], capture_output=True, text=True, check=True)
        check(json.loads(ran.stdout), schema.LIST)
        self.assertIn(SWEEP[2], ran.stdout)
        ran = subprocess.run([*words, "--collect", *SWEEP], capture_output=True, text=True, check=True)
        check(json.loads(ran.stdout), schema.JOB)
        ran = subprocess.run([*words, "run", support.SMALL], capture_output=True, text=True, check=False)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))


if __name__ == "__main__":
    support.main()
