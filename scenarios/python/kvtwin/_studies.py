"""Sweeps and plans."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from . import _core
from ._errors import error
from ._results import Result, open_result
from ._scenario import Axes, Scenario, Settings, axes_of, sets_of, split, to_textproto, with_absolute_paths

if TYPE_CHECKING:
    import pandas

_COLUMNS = ("requests_per_s", "output_tokens_per_s", "ttft_p99_ms", "tpot_p95_ms", "preemptions")


def program() -> str:
    """The kvtwin tool of this installation, which runs the points of sweeps in processes of its own.

    ``$KVTWIN_PROGRAM`` if that is set, else ``bin/kvtwin`` above this package.
    """
    given = os.environ.get("KVTWIN_PROGRAM")
    if given:
        return given
    here = os.path.dirname(os.path.abspath(__file__))
    folder = here
    while os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
        found = os.path.join(folder, "bin", "kvtwin")
        if os.access(found, os.X_OK):
            return found
    raise error("kvtwin.sweep", f"there is no bin/kvtwin above {here}", "set KVTWIN_PROGRAM to the path of kvtwin")


def _path_of(scenario: Scenario, out: str) -> str:
    """The path of a scenario for processes; a dictionary is written to the study's folder."""
    if not isinstance(scenario, Mapping):
        return split(scenario)[0]
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "scenario.textproto")
    with open(path, "w", encoding="utf-8") as file:
        file.write(to_textproto(with_absolute_paths(scenario)))
    return path


def _number(text: str) -> Union[int, float, str]:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


class Sweep:
    """The points of a sweep, in order. ``print(sweep)`` shows the tool's table.

    Attributes:
        folder: the sweep's folder, which holds every point's result and an index for SQL.
        points: for each point a dict: ``point``, ``axes`` (field to value, as texts), ``state`` (``done``, ``failed`` or,
            of other shards, ``missing``), ``metrics`` by name, and ``error`` of a failed one.
    """

    def __init__(self, study: _core.Study) -> None:
        self.folder = study.out
        self.points: List[Dict[str, Any]] = json.loads(study.json)
        self._text = study.table

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        """An axis or a metric as an array of shape ``(points,)``, with NaN where a point has none."""
        if self.points and name in self.points[0]["axes"]:
            values = [_number(point["axes"][name]) for point in self.points]
            return np.array(values, dtype=object if any(isinstance(one, str) for one in values) else None)
        full = _core.metric_name(name)
        if not full:
            raise error("sweep", f'there is no axis or metric "{name}"', _core.metric_hint(name))
        values = [point.get("metrics", {}).get(full) for point in self.points]
        if any(isinstance(one, str) for one in values):
            return np.array(values, dtype=object)
        return np.array([np.nan if one is None else one for one in values], dtype=np.float64)

    def result(self, point: int) -> Result:
        """The whole result of one point, from the sweep's folder."""
        one = self.points[point]
        if one["state"] != "done":
            raise error(f"point {point}", f"is {one['state']}", one.get("error", "run the sweep again"))
        return open_result(os.path.join(self.folder, "points", one["key"]))

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per point: axes, ``state``, and every metric. Needs pandas."""
        import pandas

        rows = []
        for one in self.points:
            axes = {name: _number(value) for name, value in one["axes"].items()}
            rows.append({**axes, "state": one["state"], **one.get("metrics", {})})
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        return self._text


def sweep(
    scenario: Scenario,
    vary: Axes,
    set: Optional[Settings] = None,
    *,
    out: "Union[str, os.PathLike[str], None]" = None,
    samples: int = 0,
    sampler: str = "",
    seed: int = 1,
    shard: str = "0/1",
    jobs: int = 0,
    columns: Sequence[str] = _COLUMNS,
    force: bool = False,
) -> Sweep:
    """Runs a scenario at every point of a grid, or at a sample of it, as ``kvtwin sweep``.

    The folder is the state: a repeated sweep finds its finished points, an extended one runs the new ones only, and
    ``kvtwin sweep``, ``kvtwin report`` and this function read each other's folders. Points run in processes of the tool.

    Args:
        scenario: a path, a shipped name or a dict. The files that a dict names are relative to the working directory.
        vary: values by field: ``{"limits.requests_max": [16, 32]}``, or ranges: ``{"limits.requests_max": "4..64*2"}``.
        set: fields of every point.
        out: the folder; ``out/sweep-`` and a fingerprint of the arguments if it is not given. A dict needs one.
        samples: draws this many points from the axes instead of the whole grid.
        sampler: ``"sobol"`` (the default with ``samples``) or ``"random"``.
        seed: of the sample.
        shard: ``"I/N"``: only each N-th point, from I; a sweep without it collects them.
        jobs: the number of processes; 0: one for each core.
        columns: the metrics of the printed table.
        force: uses a folder of another sweep.

    Raises:
        Error: with the message of ``kvtwin sweep``. A point that fails is no error: see :attr:`Sweep.points`.
    """
    if isinstance(scenario, Mapping) and out is None:
        raise error("kvtwin.sweep", "out is missing", "a dict is written to the sweep's folder, as in out=\"out/my-sweep\"")
    request = _core.SweepRequest()
    request.out = os.fspath(out) if out is not None else ""
    request.scenario = _path_of(scenario, request.out)
    request.vary, request.sets = axes_of(vary), sets_of(set)
    request.samples, request.sampler, request.seed = samples, sampler, seed
    request.shard, request.jobs, request.force = shard, jobs, force
    request.columns = list(columns)
    request.program = program()
    return Sweep(_core.sweep(request))


class Plan:
    """The answer of a plan. ``print(plan)`` shows it in sentences and as a table.

    Attributes:
        folder: where its runs are.
        candidates: cheapest first, each a dict: ``name``, ``choices`` (field to value), ``gpus``, ``usd_per_hour``, ``holds``,
            ``up_to`` (the largest load that it holds), ``breaks`` (which limit breaks beyond, and why),
            ``usd_per_million_output_tokens``, ``slos`` (value and used fraction of each), ``refused`` (why, if it was).
        best: the cheapest candidate that holds; ``None`` if there is none.
        holds_up_to: the load that it holds with every seed.
        cost_curve: dicts with ``up_to``, ``usd_per_hour`` and ``candidate``: the cheapest candidate for each load.
    """

    def __init__(self, study: _core.Study) -> None:
        parts = json.loads(study.json)
        self.folder = study.out
        self.candidates: List[Dict[str, Any]] = parts.get("candidates", [])
        self.best: Optional[Dict[str, Any]] = next(
            (one for one in self.candidates if one["name"] == parts.get("best")), None)
        self.holds_up_to: Optional[float] = parts.get("holds_up_to")
        self.cost_curve: List[Dict[str, Any]] = parts.get("cost_curve", [])
        self._text = study.table

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per candidate, with a column for each choice. Needs pandas."""
        import pandas

        rows = []
        for one in self.candidates:
            plain = {name: value for name, value in one.items() if not isinstance(value, (dict, list))}
            rows.append({**{name: _number(value) for name, value in one.get("choices", {}).items()}, **plain})
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        return self._text


def plan(
    scenario: Scenario,
    *,
    slo: Union[str, Sequence[str]],
    load: str,
    need: float,
    vary: Optional[Axes] = None,
    set: Optional[Settings] = None,
    loss: Sequence[str] = (),
    seeds: int = 3,
    out: "Union[str, os.PathLike[str]]" = "out/plan",
    jobs: int = 0,
    allow_roofline: bool = False,
) -> Plan:
    """Finds the cheapest configuration that meets its SLOs, as ``kvtwin plan``.

    Args:
        scenario: a path, a shipped name or a dict.
        slo: one or more objectives: ``["ttft_p99<2s", "tpot_p95<50ms"]``.
        load: the field that sets the load, and the range to try: ``"workload.sessions=8..256"``.
        need: the load that must hold.
        vary: the choices of the candidates, a grid.
        set: fields of every candidate.
        loss: the quality loss of a choice in percent: ``["policies.precision=int4:0.4"]``.
        seeds: the number of seeds with which the answer must hold.
        out: the folder of the runs; a repeated plan finds them again.
        jobs: the number of processes; 0: one for each core.
        allow_roofline: judges candidates whose step times are not measured, too.

    Raises:
        Error: with the message of ``kvtwin plan``.
    """
    request = _core.PlanRequest()
    request.out = os.fspath(out)
    request.scenario = _path_of(scenario, request.out)
    request.slos = [slo] if isinstance(slo, str) else list(slo)
    request.load, request.need, request.seeds = load, need, seeds
    request.vary, request.sets, request.losses = axes_of(vary), sets_of(set), list(loss)
    request.jobs, request.allow_roofline = jobs, allow_roofline
    request.program = program()
    return Plan(_core.plan(request))
