"""The address that a server listens on: whether it can be had, and what people call it.

Knows sockets. Imports no server, so that an address is refused before one is loaded.
"""

import errno
import socket

from headrace.base.errors import ConfigurationError

BACKLOG = 2048
_MAX_PORT = 65535


def check_address(host: str, port: int) -> None:
    """Raises ConfigurationError where nobody could listen there now: sooner than after loading a model."""
    bind(host, port).close()


def bind(host: str, port: int) -> socket.socket:
    """Raises ConfigurationError where the address cannot be had."""
    if not 0 <= port <= _MAX_PORT:
        raise ConfigurationError(f"port must be between 0 and {_MAX_PORT}, not {port}; check --host and --port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"cannot listen on {host!r}, port {port}: {error}; check --host and --port") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigurationError(_why_not_bound(error, host, port)) from None
    return listener


def _why_not_bound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another program: stop that, or choose another port, for example "
            f"--port {port + 1 if port < _MAX_PORT else 8000} (--port 0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this process has: choose one above 1023 with --port"
    return f"cannot listen on {host}, port {port}: {error.strerror}; check --host and --port"


def url_of(host: str, listener: socket.socket) -> str:
    """Where to point a browser: a server on all addresses is also on this machine's own."""
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
