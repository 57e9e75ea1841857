"""`headrace`: which commands there are, and what an exit status means.

Knows the commands by name and imports only the one that is called, so that each starts fast; and nothing at all before
Ctrl-C ends it without a word and an engine process has its head start. Exit statuses:

    0    done; for a server: it was told to stop, and drained
    1    a bug, or a check that failed (`simulate`, `bench`, `compare`)
    2    the command line, a configuration file or an option is wrong; the port is taken
    3    the model cannot be found, fetched or read
    4    the engine died, and the server was not to restart it or gave up
    130  interrupted: Ctrl-C before the server served, or twice
"""

import errno
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from headrace.base.errors import HeadraceError

EXIT_MODEL = 3
EXIT_ENGINE_DIED = 4
EXIT_INTERRUPTED = 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


def main(words: "Sequence[str] | None" = None) -> int:
    """Runs one command and returns its exit status. Without `words`: that of the command line."""
    try:
        try:
            return _carry_out(words)
        finally:
            _flush()  # here, where it can be told why it fails; help, too, which ends by an exception
    except BrokenPipeError:
        return 0  # whoever read the output has seen enough
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        sys.stderr.write(f"headrace: {error.filename or 'the output'} cannot be written: {error.strerror}\n")
        return 1
    finally:
        _let_go_of_output()


def _flush() -> None:
    if sys.stdout is not None:  # as it is where whoever started this closed it
        sys.stdout.flush()


def _let_go_of_output() -> None:
    """The interpreter writes what is left at its end, and there nothing would catch that nobody reads it any more."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _carry_out(words: "Sequence[str] | None") -> int:
    on_interrupt = signal.getsignal(signal.SIGINT)
    if words is None and on_interrupt is not signal.SIG_IGN:
        # An exception in the middle of an import leads anywhere: whoever imports may swallow, rename or print it.
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    from headrace.base.errors import HeadraceError

    try:
        if words is None:
            _prepare(sys.argv[1:])
            options = _read(sys.argv[1:])
            signal.signal(signal.SIGINT, on_interrupt)  # from here on there may be something to clear away
        else:
            options = _read(words)
        status: int = options.run(options)
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        return _status_of(error)
    except KeyboardInterrupt:
        sys.stderr.write("headrace: interrupted\n")
        return EXIT_INTERRUPTED
    return status


def _prepare(words: "Sequence[str]") -> None:
    """An engine process takes as long to import as everything before it is told what to do: they go on side by side.
    What is made until then stays, so that looking for garbage would find none (`serve.py` turns it on again)."""
    if words[:1] == ["serve"] and not {"-h", "--help"} & set(words):
        gc.disable()
        from headrace.cli.environment import let_children_use_huge_pages
        from headrace.engine.host.head_start import give_head_start

        let_children_use_huge_pages()
        give_head_start()


def _status_of(error: "HeadraceError") -> int:
    from headrace.base.errors import CheckpointError, ConfigurationError, EngineDeadError
    from headrace.cli.parser import EXIT_USAGE

    match error:
        case ConfigurationError():
            return EXIT_USAGE
        case CheckpointError():
            return EXIT_MODEL
        case EngineDeadError():
            return EXIT_ENGINE_DIED
        case _:
            return 1


def _read(words: "Sequence[str]") -> "argparse.Namespace":
    from headrace import __version__
    from headrace.cli.parser import Parser, unknown_word

    parser = Parser(
        prog="headrace",
        description="Serve language models, on a laptop or on GPUs, over the APIs that clients already speak.",
        epilog="`headrace COMMAND --help` explains a command. `headrace serve` alone serves a small model to try.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    called = next((word for word in words if not word.startswith("-")), None)
    if called is not None and called not in _COMMANDS:
        parser.error(unknown_word(called, "command", _COMMANDS))
    for name, add_parser in _COMMANDS.items():
        if called in (None, name):
            add_parser(commands)
            commands.choices[name].set_defaults(parser=commands.choices[name])
    return parser.read(words)


def _serve(commands: Commands) -> None:
    from headrace.cli import serve

    serve.add_parser(commands)


def _pull(commands: Commands) -> None:
    from headrace.cli import pull

    pull.add_parser(commands)


def _simulate(commands: Commands) -> None:
    from headrace.cli import simulate

    simulate.add_parser(commands)


def _plan(commands: Commands) -> None:
    from headrace.cli import plan

    plan.add_parser(commands)


def _calibrate(commands: Commands) -> None:
    from headrace.cli import calibrate

    calibrate.add_parser(commands)


def _bench(commands: Commands) -> None:
    from headrace.cli import bench

    bench.add_parser(commands)


def _compare(commands: Commands) -> None:
    from headrace.cli import compare

    compare.add_parser(commands)


def _roofline(commands: Commands) -> None:
    from headrace.cli import roofline

    roofline.add_parser(commands)


def _version(commands: Commands) -> None:
    from headrace.cli import version

    version.add_parser(commands)


_COMMANDS: "dict[str, Callable[[Commands], None]]" = {
    "serve": _serve,
    "pull": _pull,
    "simulate": _simulate,
    "calibrate": _calibrate,
    "plan": _plan,
    "bench": _bench,
    "compare": _compare,
    "roofline": _roofline,
    "version": _version,
}


if __name__ == "__main__":
    sys.exit(main())
