"""The errors that a user can mend: each is one line that names the thing, the value and the remedy."""

from collections.abc import Iterable


def near(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The remedy for a name that is not known: the one that was meant, if one is alike, else all, or another remedy."""
    import difflib  # not where the command line starts

    known = list(known)
    alike = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {alike[0]!r}?" if alike else otherwise or f"use one of {', '.join(known)}"


def short(value: object) -> str:
    """A value as an error shows it: no longer than half a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class UserError(Exception):
    """Something the user asked for cannot be done; the command line prints it as one line and exits with 2."""

    def _render_traceback_(self) -> list[str]:
        """One line in a notebook as well, where IPython asks an error how to show it."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(UserError):
    """A configuration holds an unknown key or an impossible value."""


class ModelError(UserError):
    """A model cannot be found, fetched, read or supported."""


class RequestError(UserError):
    """A request cannot be served as asked, now or ever; the batch in progress is not touched."""


class BusyError(RequestError):
    """A request cannot be served now, but could be later."""
