"""Results of runs."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._errors import error
from ._scenario import Scenario, Settings, sets_of, split

if TYPE_CHECKING:
    import pandas


#: Scores the KV entries of one layer: ``(layer, positions [H, T], keys [H, T, d], values [H, T, d], queries [Hq, w, d])``
#: to ``[H, T]``; higher scores are retained.
Scorer = Callable[
    [int, "np.ndarray[Any, Any]", "np.ndarray[Any, Any]", "np.ndarray[Any, Any]", "np.ndarray[Any, Any]"],
    "np.ndarray[Any, Any]",
]


def _column(cells: Sequence[str]) -> "np.ndarray[Any, Any]":
    """int64 if all cells are whole numbers; float64 with NaN for empty cells; otherwise texts."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array(cells, dtype=object)


class Table(Mapping[str, "np.ndarray[Any, Any]"]):
    """Columns by name, each a NumPy array of shape ``(rows,)``.

    Whole numbers are int64; columns with empty cells are float64 with NaN there; texts are objects.
    """

    def __init__(self, text: str) -> None:
        rows = list(csv.reader(io.StringIO(text)))
        names, body = (rows[0], rows[1:]) if rows else ([], [])
        self._rows = len(body)
        self._columns = {name: _column([row[i] for row in body]) for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> "np.ndarray[Any, Any]":
        if name not in self._columns:
            raise error("table", f'there is no column "{name}"', "one of: " + ", ".join(self._columns))
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._rows

    def to_pandas(self) -> "pandas.DataFrame":
        """A DataFrame with the same columns. Needs pandas."""
        import pandas

        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"<kvtwin.Table {self._rows} rows: {', '.join(self._columns)}>"


class Result:
    """The result of one run. ``print(result)`` shows the tool's table.

    ``result["ttft_p99_ms"]`` is the metric of that name; short forms (``ttft_p99``) work too. Names, units and
    definitions are those of ``kvtwin list metrics`` (:func:`kvtwin.metrics`).
    """

    def __init__(self, run: _core.Run) -> None:
        self._run = run
        self._metrics: Dict[str, Any] = json.loads(run.summary)
        self._tables: Dict[str, Table] = {}

    @property
    def metrics(self) -> Dict[str, Any]:
        """All metrics by name: numbers in the unit that the name ends with, and texts."""
        return dict(self._metrics)

    def __getitem__(self, name: str) -> Any:
        if name in self._metrics:
            return self._metrics[name]
        full = _core.metric_name(name)
        if not full:
            raise error("metrics", f'there is no metric "{name}"', _core.metric_hint(name))
        if full not in self._metrics:
            raise error("metrics", f"{full} does not apply to this run", "kvtwin.metrics() defines it")
        return self._metrics[full]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in self._metrics or _core.metric_name(name) in self._metrics)

    @property
    def digest(self) -> str:
        """The digest of all decisions, 16 hex digits: equal digests are equal decisions."""
        return str(self._metrics["decisions"])

    @property
    def inputs(self) -> str:
        """The fingerprint of scenario, trace, profiles and version, 16 hex digits."""
        return str(self._metrics["inputs"])

    @property
    def scenario_text(self) -> str:
        """The scenario with every default, as a file that repeats the run."""
        return self._run.file("scenario.resolved.textproto").decode()

    @property
    def notes(self) -> List[str]:
        """Sentences that a reader must know, such as a cap on think times."""
        return list(self._run.notes)

    @property
    def wall_s(self) -> float:
        """How long the run took on this machine, in seconds, with reading the trace; 0 for an opened folder."""
        return self._run.wall_s

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(self._run.file(name).decode())
        return self._tables[name]

    @property
    def requests(self) -> Table:
        """One row per request, in order of request id.

        Columns that end with ``_ns`` are int64 nanoseconds of the run's clock: ``ready_ns``, ``queued_ns``,
        ``admitted_ns``, ``first_token_ns`` and ``finished_ns`` are instants (NaN if a request did not get there),
        ``queue_ns`` to ``host_ns`` are durations that add up to the latency. The others are counts of tokens and
        preemptions, and names.
        """
        return self._table("requests.csv")

    @property
    def tools(self) -> Table:
        """One row per tool call between requests, in order of release; no columns if there was none."""
        return self._table("tools.csv")

    @property
    def timeline(self) -> List[Dict[str, Any]]:
        """The trace events of the run's ``timeline`` window, as chrome://tracing reads them: ``ts`` and ``dur`` are in
        microseconds, ``pid`` is the engine. Empty without ``timeline=`` in :func:`kvtwin.run`."""
        text = self._run.file("timeline.json").decode()
        return list(json.loads(text)["traceEvents"]) if text else []

    def save(self, folder: "Union[str, os.PathLike[str]]", force: bool = False) -> None:
        """Writes the files of ``kvtwin run --out``, which ``kvtwin report`` and ``kvtwin compare`` read.

        Args:
            folder: is made if it does not exist.
            force: replaces a result of other inputs, too.
        """
        self._run.save(os.fspath(folder), force)

    def requests_log(self) -> str:
        """requests.jsonl: finished requests with the field names and seconds of vLLM's request log."""
        return self._run.file("requests.jsonl").decode()

    def __str__(self) -> str:
        return self._run.table

    def __repr__(self) -> str:
        return f"<kvtwin.Result {self._metrics.get('scenario')} decisions={self.digest}>"


def run(
    scenario: Scenario,
    set: Optional[Settings] = None,
    *,
    backend: Optional[str] = None,
    clock: Optional[str] = None,
    seed: Optional[int] = None,
    timeline: Union[str, Tuple[float, float], None] = None,
    allow_unread: bool = False,
    scorer: Optional[Scorer] = None,
) -> Result:
    """Runs one scenario in this process.

    Other Python threads go on meanwhile. Runs of several threads follow one another, because there is one simulator
    per process; use :func:`kvtwin.sweep`, Dask or processes for several at once. After Ctrl-C the next run waits until
    the interrupted one has ended.

    Args:
        scenario: a path, the name of a shipped scenario (:func:`kvtwin.scenarios`), or its fields as a dict.
        set: fields that differ from the scenario: ``{"memory.gpu_pages": 16000}``. Units are as on the command line:
            ``{"memory.host_bytes": "64GiB"}``.
        backend: ``"sim"``, ``"cpu"`` or ``"cuda"``.
        clock: ``"virtual"`` or ``"wall"``, of backends that compute values.
        seed: the seed of all draws.
        timeline: a window whose steps, transfers and requests are recorded, in seconds since the start of the run:
            ``(10, 12.5)``.
        allow_unread: accepts a setting that the run does not read.
        scorer: a function that scores KV entries, in place of ``policies.scorer``. It is called for every layer of every
            compression of a backend that computes values: ``"cpu"`` or ``"cuda"``. Its arguments are the layer,
            positions ``[H, T]`` (int64), keys and values ``[H, T, d]`` and queries ``[Hq, w, d]`` (float32); it returns
            scores ``[H, T]``, and higher scores are retained.

    Raises:
        Error: with the message of ``kvtwin run``.
        Exception: what the scorer raises; ValueError if it returns something else than scores.
    """
    path, text = split(scenario)
    sets = sets_of(set)
    for name, value in (("seed", seed), ("backend", backend), ("clock", clock)):
        if value is not None:
            sets.append(f"{name}={value}")
    if isinstance(timeline, tuple):
        timeline = f"{timeline[0]}..{timeline[1]}"
    name = ""
    if scorer is not None and not callable(scorer):
        raise error("scorer", f"is {scorer!r}", 'a function; a shipped scorer is set={"policies.scorer": ...}')
    if scorer is not None:
        name = getattr(scorer, "__qualname__", type(scorer).__qualname__)
        sets += ["policies.scorer=external", "policies.scorer_options.command=" + _core.in_process_command(name)]
    return Result(_core.run(path, text, sets, timeline or "", allow_unread, name, scorer))


def open_result(folder: "Union[str, os.PathLike[str]]") -> Result:
    """Reads the result in a folder that ``kvtwin run``, ``kvtwin sweep`` or :meth:`Result.save` wrote.

    Raises:
        Error: there is no result, or it is damaged.
    """
    return Result(_core.open(os.fspath(folder)))
