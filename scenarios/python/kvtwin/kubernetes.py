"""Writes a sweep or an evaluation as Kubernetes manifests: an indexed Job whose tasks are the shards, and a Job that
collects them.

    python3 -m kvtwin.kubernetes --image=IMAGE --claim=CLAIM --tasks=N sweep SCENARIO --vary=... > shards.json

Everything after the options of this command is the command of the tool, without ``--out`` and ``--shard``. The manifests
are JSON, which ``kubectl apply -f`` reads. All pods write to the same folder of the same volume, as the tasks of a Slurm
array do: a pod that is killed and started again finds its finished points.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Sequence

from . import _core
from ._errors import Error, error
from ._studies import program

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_FOLDER = "/kvtwin"
_SCENARIO = "/scenario"
_CONFIG_MAP_BYTES_MAX = 1 << 20
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")


def _literal(word: str) -> str:
    """The word as Kubernetes passes it on unchanged: it would replace $(NAME)."""
    return word.replace("$(", "$$(")


def _container(image: str, command: List[str], args: Sequence[str], cpus: int, memory: str,
               scenario: bool) -> Dict[str, Any]:
    mounts = [{"name": "results", "mountPath": _FOLDER}]
    if scenario:
        mounts.append({"name": "scenario", "mountPath": _SCENARIO, "readOnly": True})
    return {
        "name": "kvtwin",
        "image": image,
        "command": command,
        "args": [_literal(word) for word in args],
        "workingDir": _FOLDER,
        "resources": {"requests": {"cpu": str(cpus), "memory": memory}, "limits": {"memory": memory}},
        "volumeMounts": mounts,
    }


def _job(name: str, claim: str, container: Dict[str, Any], scenario: bool, spec: Dict[str, Any]) -> Dict[str, Any]:
    volumes: List[Dict[str, Any]] = [{"name": "results", "persistentVolumeClaim": {"claimName": claim}}]
    if scenario:
        volumes.append({"name": "scenario", "configMap": {"name": name.removesuffix("-collect")}})
    labels = {"app.kubernetes.io/name": "kvtwin", "app.kubernetes.io/instance": name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **spec,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], "volumes": volumes},
            },
        },
    }


def _scenario_files(words: List[str]) -> Dict[str, str]:
    """The scenario files among the words, by file name. Replaces their paths by those in the pods."""
    files: Dict[str, str] = {}
    for i, word in enumerate(words):
        if i == 0 or word.startswith("-") or word in _core.shipped() or not os.path.isfile(word):
            continue
        file = os.path.basename(word)
        if file in files:
            raise error(word, f"is the second file called {file}", "a ConfigMap holds one of each name: rename it")
        with open(word, encoding="utf-8") as opened:
            files[file] = opened.read()
        words[i] = f"{_SCENARIO}/{file}"
    if sum(len(text.encode()) for text in files.values()) > _CONFIG_MAP_BYTES_MAX:
        raise error(", ".join(files), "are larger than a ConfigMap may be", "name their paths on the volume instead")
    return files


def _check_sweep(words: List[str]) -> None:
    """Refuses a sweep that no pod could run, as far as this machine can tell."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([program(), *words, f"--out={folder}/sweep", "--dry-run", "--quiet"], text=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if tried.returncode == 2:
        raise error("kvtwin.kubernetes", "the command is refused: " + tried.stderr.strip().replace("\n", "; "),
                    "check=False (--no-check) if it is right in the image")


def manifests(words: Sequence[str], *, image: str, claim: str, tasks: int, name: str = "kvtwin", cpus: int = 1,
              memory: str = "2Gi", parallelism: Optional[int] = None, retries: int = 3, check: bool = True) -> Dict[str, Any]:
    """The manifests of a sweep or an evaluation.

    Args:
        words: the command of the tool: ``["sweep", "weka_h200", "--vary=limits.requests_max=16,32"]``, or ``["evaluate",
            ...]``. Scenario files of this machine become a ConfigMap; the files that they name must be in the image or on
            the volume.
        image: the container image, made from cmake/Dockerfile.
        claim: a PersistentVolumeClaim that all pods can mount (ReadWriteMany).
        tasks: the number of shards.
        name: of the Jobs; the results are in the volume's folder of this name.
        cpus: per pod, which runs as many points at once.
        memory: per pod.
        parallelism: the most pods at once; all by default.
        retries: of one shard, before it counts as failed.
        check: refuse a sweep whose scenario or axes this machine's tool refuses. Files that only the image or the volume has
            need False.

    Returns:
        ``{"shards": List, "collect": Job}``: apply ``shards``, wait for it, then apply ``collect``, whose log has the table.

    Raises:
        Error: an argument is wrong.
    """
    words = list(words)
    if not words or words[0] not in ("sweep", "evaluate"):
        raise error("kvtwin.kubernetes", f"cannot split the command {' '.join(words[:1])!r}", "sweep or evaluate")
    for word in words:
        if word.split("=")[0] in ("--out", "--shard", "--collect", "--launcher", "--jobs"):
            raise error("kvtwin.kubernetes", f"{word} is given", "leave it out: the manifests set it")
    if tasks < 1:
        raise error("tasks", f"is {tasks}", "1 at least")
    if not _NAME.fullmatch(name):
        raise error("name", f'is "{name}"', "at most 52 small letters, digits and -, as in my-sweep")
    if not _OBJECT.fullmatch(claim):
        raise error("claim", f'is "{claim}"', "small letters, digits, - and ., as in kvtwin-results")
    if not _QUANTITY.fullmatch(memory):
        raise error("memory", f'is "{memory}"', "a quantity of Kubernetes, as in 2Gi")
    if check and words[0] == "sweep":
        _check_sweep(words)
    files = _scenario_files(words)
    scenario = bool(files)
    items: List[Dict[str, Any]] = []
    if files:
        items.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": files})
    out = f"{_FOLDER}/{name}"
    jobs = [f"--jobs={cpus}"] if words[0] == "sweep" else []
    # Status 1 says that some points failed, which is a result and not a reason to run the shard again.
    script = f'kvtwin "$@" "--shard=$JOB_COMPLETION_INDEX/{tasks}"; status=$?; [ $status -ne 1 ] || status=0; exit $status'
    shards = _container(image, ["/bin/sh", "-c", script, "kvtwin"], [*words, f"--out={out}", *jobs, "--quiet"], cpus,
                        memory, scenario)
    items.append(_job(name, claim, shards, scenario, {
        "completionMode": "Indexed",
        "completions": tasks,
        "parallelism": parallelism or tasks,
        "backoffLimitPerIndex": retries,  # Kubernetes 1.29
        # Status 2 says that the command is wrong: no pod would fare better.
        "podFailurePolicy": {
            "rules": [{"action": "FailJob",
                       "onExitCodes": {"containerName": "kvtwin", "operator": "In", "values": [2]}}],
        },
    }))
    # The same command without a shard finds every point; it runs what is missing, and writes the index.
    collect = _container(image, ["kvtwin"], [*words, f"--out={out}", *jobs, "--quiet"], cpus, memory, scenario)
    return {
        "shards": {"apiVersion": "v1", "kind": "List", "items": items},
        "collect": _job(name + "-collect", claim, collect, scenario, {"backoffLimit": retries}),
    }


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m kvtwin.kubernetes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, help="the container image, made from cmake/Dockerfile")
    parser.add_argument("--claim", required=True, help="a PersistentVolumeClaim that all pods can mount (ReadWriteMany)")
    parser.add_argument("--tasks", type=int, required=True, help="the number of shards")
    parser.add_argument("--name", default="kvtwin", help="of the Jobs, and of the folder on the volume (kvtwin)")
    parser.add_argument("--cpus", type=int, default=1, help="per pod, which runs as many points at once (1)")
    parser.add_argument("--memory", default="2Gi", help="per pod (2Gi)")
    parser.add_argument("--parallelism", type=int, help="the most pods at once (all)")
    parser.add_argument("--retries", type=int, default=3, help="of one shard, before it counts as failed (3)")
    parser.add_argument("--no-check", dest="check", action="store_false",
                        help="do not try the sweep's scenario and axes here: they need files of the image or the volume")
    parser.add_argument("--collect", action="store_true", help="write the Job that collects the shards instead")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="sweep or evaluate, with its arguments")
    given = vars(parser.parse_args(arguments))
    words, collect = given.pop("command"), given.pop("collect")
    try:
        made = manifests(words, **given)
    except Error as problem:
        print(problem, file=sys.stderr)
        return 2
    json.dump(made["collect" if collect else "shards"], sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
