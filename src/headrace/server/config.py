"""What the HTTP doors may be told. Knows limits and permissions; not the engine's options, and not where these came from."""

from dataclasses import dataclass, field

from headrace.base.errors import ConfigurationError
from headrace.base.units import MIB
from headrace.server.reasoning import formats as reasoning_formats
from headrace.server.tools import formats as tool_formats


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Each field with its reason. Raises ConfigurationError where a value cannot work."""

    api_key: str | None = field(default=None, repr=False)
    """Clients must send it as `Authorization: Bearer …`; None lets everybody in. Health checks and pages need none."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call this server from a browser; `*` allows all. None by default: a page that a
    user happens to visit has no business with a server on their machine."""
    max_body_bytes: int = 16 * MIB
    """Larger requests are refused with 413 before they are read."""
    max_n: int = 128
    """Most answers to one prompt (OpenAI's own limit)."""
    max_prompts: int = 1024
    """Most prompts of one completion request: each becomes a request of its own to the engine."""
    max_stops: int = 64
    """Most stop strings: each is looked for in every piece of the answer."""
    tool_call_parser: str | None = None
    """How the model writes calls of tools; None: as its chat template shows."""
    reasoning_parser: str | None = None
    """How the model marks its reasoning; None: as its chat template shows; `none`: it is not told apart."""
    enforces_tags: bool = True
    """The engine enforces structural tags, so that calls which must come are written as the model writes them; without
    that they are plain JSON."""
    access_log: bool = True
    """Write a line for every request except health checks and scrapes."""

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_n", "max_prompts", "max_stops"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.tool_call_parser is not None:
            tool_formats.format_named(self.tool_call_parser)
        if self.reasoning_parser is not None:
            reasoning_formats.format_named(self.reasoning_parser)
        if self.api_key is not None and not self.api_key:
            raise ConfigurationError("api_key is empty: leave it out to let everybody in, or give a key")
