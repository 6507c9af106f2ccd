"""The errors that a user can mend: each is one line that names the thing, the value and the remedy."""


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
