"""Comparisons: of two runs, and of a run with a request log."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple, Union, overload

from . import _core
from ._errors import error
from ._results import Result, open_result

if TYPE_CHECKING:
    import pandas


class Comparison:
    """A run next to a request log, metric by metric. ``print(comparison)`` shows the table of ``kvtwin compare``.

    Attributes:
        requests: the number of compared requests.
        skipped: the number of first requests that are left out.
        matched_by: ``"id"`` or ``"order"``.
        broken: a sentence for each broken limit.
    """

    def __init__(self, parts: Tuple[List[Tuple[str, str, float, float, float]], int, int, str, List[str], str]) -> None:
        self._rows, self.requests, self.skipped, self.matched_by, self.broken, self._text = parts

    @property
    def rows(self) -> List[Dict[str, Any]]:
        """``metric`` (ttft, tpot, latency), ``statistic`` (mean, median, p90, p95, p99), ``real_ms`` and ``kvtwin_ms`` in
        milliseconds, and ``difference_percent`` of each."""
        names = ("metric", "statistic", "real_ms", "kvtwin_ms", "difference_percent")
        return [dict(zip(names, row)) for row in self._rows]

    def to_pandas(self) -> "pandas.DataFrame":
        """:attr:`rows` as a DataFrame. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        return self._text


def _log_of(source: "Union[Result, str, os.PathLike[str]]") -> Tuple[str, str]:
    if isinstance(source, Result):
        return source.requests_log(), repr(source)
    path = os.fspath(source)
    if os.path.isdir(path):
        path = os.path.join(path, "requests.jsonl")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), path
    except (OSError, UnicodeDecodeError) as problem:
        raise error(path, f"cannot be read: {problem}", "a Result, a run's folder or a request log") from None


class RunsComparison:
    """Two runs side by side, as ``kvtwin compare RUN RUN``. ``print(comparison)`` shows its table.

    Attributes:
        first: the name of the first run, which differences are relative to: its folder, or ``"first"``.
        second: the name of the second run.
        settings: the settings that differ, each with ``field``, ``first`` and ``second``; empty for a real server's run.
        rows: the metrics that both runs have, each with the columns of ``--format=csv``: ``metric``, ``unit``, ``first``,
            ``second`` and ``difference_percent`` (None where the first is 0).
        same_requests: of the requests that both finished: ``requests``, ``faster``, ``slower``, ``median_percent``; None
            if they are not the same requests.
        same_decisions: whether the policy decided the same; None for a real server's run.
        broken: a sentence for each broken limit.
    """

    def __init__(self, text: str, table: str, broken: List[str]) -> None:
        parts = json.loads(text)
        self.first: str = parts["first"]
        self.second: str = parts["second"]
        self.settings: List[Dict[str, str]] = parts["settings"]
        self.rows: List[Dict[str, Any]] = parts.get("metrics", [])
        self.same_requests: Optional[Dict[str, float]] = parts.get("same_requests")
        self.same_decisions: Optional[bool] = parts.get("same_decisions")
        self.broken = broken
        self._table = table

    def to_pandas(self) -> "pandas.DataFrame":
        """:attr:`rows` as a DataFrame. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.rows)

    def __str__(self) -> str:
        return self._table


def _is_run(source: "Union[Result, str, os.PathLike[str]]") -> bool:
    return isinstance(source, Result) or os.path.isdir(os.fspath(source))


def _run_of(source: "Union[Result, str, os.PathLike[str]]", name: str) -> "Tuple[_core.Run, str]":
    if isinstance(source, Result):
        return source._run, name
    return open_result(source)._run, os.path.normpath(os.fspath(source))


@overload
def compare(run: "Union[Result, str, os.PathLike[str]]", other: Result, *, limits: Sequence[str] = ()) -> RunsComparison: ...
@overload
def compare(
    run: "Union[Result, str, os.PathLike[str]]",
    other: "Union[str, os.PathLike[str]]",
    *,
    skip: int = 0,
    limits: Sequence[str] = (),
) -> Union[Comparison, RunsComparison]: ...
def compare(
    run: "Union[Result, str, os.PathLike[str]]",
    other: "Union[Result, str, os.PathLike[str]]",
    *,
    skip: int = 0,
    limits: Sequence[str] = (),
) -> Union[Comparison, RunsComparison]:
    """Compares two runs, or a run with a real server's request log.

    Args:
        run: a Result or a run's folder; next to a log also a file in the format of requests.jsonl.
        other: a Result or a run's folder: differences are those of ``other`` to ``run`` (:class:`RunsComparison`). A
            request log: differences are those of ``run`` to the log (:class:`Comparison`).
        skip: next to a log, leaves out this many first requests on both sides.
        limits: bounds on differences in percent: ``["ttft_p99=5"]``, next to a log ``["ttft.mean=5"]``. They fill
            ``broken`` of the comparison.
    """
    if not _is_run(other):
        real_text, real_name = _log_of(other)
        ours_text, ours_name = _log_of(run)
        return Comparison(_core.compare(real_text, real_name, ours_text, ours_name, skip, list(limits)))
    if skip > 0:
        raise error("skip", "leaves out requests of a log, and two runs have all of theirs", "give a request log as other")
    if not _is_run(run):
        raise error(os.fspath(run), "is no folder of a run, and the second argument is one", "give the run first")  # type: ignore[arg-type]
    first, first_name = _run_of(run, "first")
    second, second_name = _run_of(other, "second")
    return RunsComparison(*_core.compare_runs(first, first_name, second, second_name, list(limits)))
