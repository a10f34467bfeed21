"""The exception of this package."""

from __future__ import annotations

from typing import Sequence, Tuple


class Error(ValueError):
    """Wrong input: a scenario, a field or an argument.

    The text is the message of the command line, a line for each error: *where: what, with the value; what would be
    right*.

    Attributes:
        where: the place of the first error, as ``file:line:column``, ``--set=...`` or an argument.
        what: what is wrong, with the value.
        hint: what would be right; may be empty.
        errors: all errors as ``(where, what, hint)``.
    """

    def __init__(self, errors: Sequence[Tuple[str, str, str]]) -> None:
        self.errors = [tuple(one) for one in errors]
        self.where, self.what, self.hint = self.errors[0]
        lines = []
        for where, what, hint in self.errors:
            lines.append((where + ": " if where else "") + what + ("; " + hint if hint else ""))
        super().__init__("\n".join(lines))

    def __reduce__(self):
        # Dask and multiprocessing send exceptions from one process to another.
        return (Error, (self.errors,))


def error(where: str, what: str, hint: str = "") -> Error:
    return Error([(where, what, hint)])
