"""Log lines for people and for machines."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace.obs.logging import LogFormat, configure_logging


@pytest.fixture(autouse=True)
def _leave_logging_as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("headrace")
    before = root.handlers[:], root.level, ours.level
    root.handlers = []  # so that pytest's own handlers are not closed by the configuration under test
    yield
    root.handlers, root.level, ours.level = before
    root.setLevel(before[1])
    ours.setLevel(before[2])


def written(log_format: LogFormat, level: str = "info") -> io.StringIO:
    output = io.StringIO()
    configure_logging(level=level, log_format=log_format, output=output)
    return output


def test_a_plain_line_names_level_logger_message_and_fields() -> None:
    output = written(LogFormat.PLAIN)
    logging.getLogger("headrace.server").info("took %d", 3, extra={"request_id": "abc"})
    assert output.getvalue().endswith("INFO headrace.server: took 3 (request_id=abc)\n")


def test_a_json_line_is_one_object_with_the_fields_beside_the_message() -> None:
    output = written(LogFormat.JSON)
    logging.getLogger("headrace.server").warning("zwei\nZeilen", extra={"request_id": "abc"})
    (line,) = output.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").startswith("20")
    assert entry == {
        "level": "warning",
        "logger": "headrace.server",
        "message": "zwei\nZeilen",
        "request_id": "abc",
    }


@pytest.mark.parametrize("log_format", LogFormat)
def test_an_exception_is_written_with_its_traceback(log_format: LogFormat) -> None:
    output = written(log_format)
    try:
        raise ValueError("no water")
    except ValueError:
        logging.getLogger("headrace").exception("stopped")
    assert "ValueError: no water" in output.getvalue()


def test_our_loggers_obey_the_level_and_libraries_stay_quiet_below_warning() -> None:
    output = written(LogFormat.PLAIN, level="debug")
    logging.getLogger("headrace.x").debug("ours")
    logging.getLogger("library").info("theirs")
    assert "ours" in output.getvalue()
    assert "theirs" not in output.getvalue()


def test_configuring_again_replaces_what_was_there() -> None:
    first = written(LogFormat.PLAIN)
    second = written(LogFormat.PLAIN)
    logging.getLogger("headrace").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
