"""Text work runs where it holds up nobody."""

import asyncio
import threading

import pytest
from tests.patience import PATIENCE_S

from headrace.base.errors import InvalidRequestError
from headrace.server.services import InFlight, TextPool


def test_short_texts_are_worked_on_at_once_and_long_ones_in_a_thread() -> None:
    async def story() -> tuple[int, int]:
        pool = TextPool()
        short = await pool.run(10, threading.get_ident)
        long = await pool.run(1_000_000, threading.get_ident)
        pool.close()
        return short, long

    short, long = asyncio.run(story())
    assert short == threading.get_ident()
    assert long != threading.get_ident()


def test_the_loop_turns_while_a_long_text_is_worked_on() -> None:
    async def story() -> None:
        pool = TextPool()
        may_end = threading.Event()
        working = asyncio.create_task(pool.run(1_000_000, may_end.wait))
        await asyncio.sleep(0)
        may_end.set()  # reached only because the work does not hold the loop
        assert await working
        pool.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


@pytest.mark.parametrize("num_chars", [1, 1_000_000])
def test_errors_come_back_from_both_places(num_chars: int) -> None:
    def work() -> None:
        raise InvalidRequestError("no", param="prompt")

    async def story() -> None:
        pool = TextPool()
        with pytest.raises(InvalidRequestError, match="no"):
            await pool.run(num_chars, work)
        pool.close()

    asyncio.run(story())


def test_what_is_in_flight_is_counted_until_it_ends() -> None:
    async def story() -> None:
        in_flight = InFlight()
        tasks = [asyncio.create_task(asyncio.sleep(3600)) for _ in range(3)]
        for task in tasks:
            in_flight.add(task)
        assert in_flight.count == 3
        in_flight.end_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)
        assert in_flight.count == 0

    asyncio.run(story())
