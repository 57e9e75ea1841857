"""The exception tree: every error that a user or an operator can cause or meet.

    HeadraceError
    ├── InvalidRequestError      the caller's fault: names the field (HTTP 400)
    │   ├── ContextLengthError   prompt and answer do not fit the model
    │   └── ModelNotFoundError   the `model` field names nothing served here (HTTP 404)
    ├── ConfigurationError       an option is wrong: names the option, the limit and the fix
    ├── CheckpointError          a model's files are missing, damaged or of an unsupported kind
    ├── OverloadedError          the engine refuses more work now; try again later (HTTP 503)
    └── EngineDeadError          the engine process is gone; its requests end with this (HTTP 503)

Programmer errors are `assert`s, and they stay on.
"""

import difflib
from collections.abc import Iterable


class HeadraceError(Exception):
    """The root: `except HeadraceError` catches what can go wrong in operation, and no bug."""


class InvalidRequestError(HeadraceError):
    """A request that cannot be served as it stands. `param` is the field at fault, in the client's spelling."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt and answer together, exceed `max_model_len`."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class ModelNotFoundError(InvalidRequestError):
    """No model of that name is served here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class ConfigurationError(HeadraceError):
    """An option, a configuration file or the environment is wrong. The message names option, limit and fix."""


class CheckpointError(HeadraceError):
    """A model cannot be read: missing files, damaged data, or a structure that is not supported."""


class OverloadedError(HeadraceError):
    """The queue is full. Nothing was lost: the request was never taken."""


class EngineDeadError(HeadraceError):
    """The engine process ended; whatever was in flight ended with it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: `; did you mean 'x'?`, or nothing where no known name is near.

    >>> nearest("temprature", ["temperature", "top_p"])
    "; did you mean 'temperature'?"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
