"""The client against real engine processes without a model: text, stops, aborts, refusals, death and restart."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import ByteTokenizer
from tests.patience import PATIENCE_S

from headrace.base.errors import ConfigurationError, ContextLengthError, EngineDeadError, InvalidRequestError
from headrace.base.ids import RequestId
from headrace.engine.host.client import EngineClient
from headrace.engine.host.config import ClientConfig, EngineConfig, EngineDeath
from headrace.engine.host.generation import GenerationRequest, OutputChunk
from headrace.engine.host.messages import Stats
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.update import FinishReason

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_engine_process.py")))


def engine(
    behaviour: str = "alphabet", *, on_engine_death: EngineDeath = EngineDeath.EXIT, **client_options: Any
) -> EngineClient:
    return EngineClient(
        EngineConfig(model_path=behaviour, max_model_len=256),
        ClientConfig(
            served_model_names=("letters",),
            on_engine_death=on_engine_death,
            ping_interval_s=0.05,
            restart_backoff_s=0.01,
            **client_options,
        ),
        load_tokenizer=lambda _: ByteTokenizer(),
        command=COMMAND,
    )


@asynccontextmanager
async def started(client: EngineClient) -> AsyncIterator[EngineClient]:
    # The engine process is told where this checkout is by the interpreter's own path.
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def request(request_id: str = "r", **options: Any) -> GenerationRequest:
    sampling = {name: options.pop(name) for name in list(options) if name in SamplingParams.__struct_fields__}
    return GenerationRequest(
        request_id=RequestId(request_id),
        prompt_token_ids=options.pop("prompt_token_ids", (1, 2, 3)),
        sampling=SamplingParams(**{"max_tokens": 8, **sampling}),
        **options,
    )


async def collect(client: EngineClient, asked: GenerationRequest) -> list[OutputChunk]:
    return [chunk async for chunk in client.generate(asked)]


def text_of(chunks: list[OutputChunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def blocks_return(client: EngineClient) -> None:
    """Returns when the engine says that nobody holds a block."""
    freed = asyncio.Event()

    def look(stats: Stats) -> None:
        if stats.num_blocks_in_use == 0 and stats.num_requests_running == 0 and stats.num_requests_waiting == 0:
            freed.set()

    client.on_stats = look
    await freed.wait()


def test_an_answer_arrives_in_pieces_that_make_the_whole() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(max_tokens=5))
            assert text_of(chunks) == "abcde"
            assert [token for chunk in chunks for token in chunk.token_ids] == list(b"abcde")
            assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
            assert chunks[-1].finish_reason is FinishReason.LENGTH
            assert chunks[-1].times is not None
            assert client.num_open_requests == 0

    run(test())


def test_a_ready_engine_tells_its_facts_and_the_seconds_of_its_start() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            facts = client.facts
            assert (facts.served_model_names, facts.num_blocks, facts.device) == (("letters",), 64, "a pencil")
            assert facts.startup_seconds["wake"] == 0.25
            assert "load_tokenizer" in facts.startup_seconds
            await client.check_health()

    run(test())


def test_many_requests_run_side_by_side_and_none_gets_anothers_text() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            asked = [request(f"r{n}", max_tokens=n) for n in range(1, 21)]
            answers = await asyncio.gather(*(collect(client, one) for one in asked))
            assert [text_of(chunks) for chunks in answers] == ["abcdefghijklmnopqrstuvwxyz"[:n] for n in range(1, 21)]

    run(test())


def test_several_continuations_of_one_request_each_end() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(num_sequences=3, max_tokens=4))
            assert [text_of(chunks, index) for index in range(3)] == ["abcd"] * 3
            assert sorted(chunk.index for chunk in chunks if chunk.finish_reason) == [0, 1, 2]

    run(test())


def test_a_stop_string_across_two_tokens_ends_the_answer_and_frees_its_blocks() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(max_tokens=200, stop=("cd",)))
            assert text_of(chunks) == "ab"
            assert chunks[-1].finish_reason is FinishReason.STOP
            assert chunks[-1].stop_reason == "cd"
            assert [token for chunk in chunks for token in chunk.token_ids] == list(b"abcd")
            await blocks_return(client)

    run(test())


def test_a_reader_that_has_enough_ends_one_continuation_in_the_engine_and_not_the_others() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            heard = ["", ""]
            asked = request(max_tokens=200, num_sequences=2, has_enough=lambda index: index == 0 and len(heard[0]) >= 3)
            chunks = []
            async for chunk in client.generate(asked):
                heard[chunk.index] += chunk.text
                chunks.append(chunk)
            first = [chunk for chunk in chunks if chunk.index == 0]
            assert heard[0].startswith("abc")
            assert len(heard[0]) < 100, "the engine stopped long before max_tokens"
            assert (first[-1].finish_reason, first[-1].stop_reason, first[-1].text) == (FinishReason.STOP, None, "")
            assert len(heard[1]) == 200
            await blocks_return(client)

    run(test())


def test_a_stop_string_is_kept_where_the_request_wants_it() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(max_tokens=200, stop=("cd",), include_stop_str_in_output=True))
            assert text_of(chunks) == "abcd"

    run(test())


def test_a_stop_token_ends_the_answer_and_is_not_shown() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(max_tokens=200, stop_token_ids=(ord("d"),)))
            assert text_of(chunks) == "abc"
            assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (FinishReason.STOP, ord("d"))

    run(test())


class EndingAtC(ByteTokenizer):
    """Knows of an end of text that the engine was not told of."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (ord("c"),)


@pytest.mark.parametrize(
    ("ignore_eos", "text", "reason"), [(False, "ab", FinishReason.STOP), (True, "abcde", FinishReason.LENGTH)]
)
def test_what_ends_a_text_by_the_tokenizers_account_ends_the_answer(
    ignore_eos: bool, text: str, reason: FinishReason
) -> None:
    async def test() -> None:
        client = engine()
        client._load_tokenizer = lambda _: EndingAtC()
        async with started(client):
            chunks = await collect(client, request(max_tokens=5, ignore_eos=ignore_eos))
            assert text_of(chunks) == text
            assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (reason, None)

    run(test())


def test_what_could_have_begun_a_stop_string_is_shown_at_the_end() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = await collect(client, request(max_tokens=3, stop=("cx",)))
            assert text_of(chunks) == "abc"
            assert chunks[-1].finish_reason is FinishReason.LENGTH

    run(test())


def test_closing_the_iterator_early_frees_every_block() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            answer = client.generate(request(max_tokens=200))
            await anext(answer)
            await answer.aclose()  # type: ignore[attr-defined]
            assert client.num_open_requests == 0
            await blocks_return(client)

    run(test())


def test_cancelling_the_reader_frees_every_block(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(engine(f"alphabet/patient{tmp_path}")) as client:
            reader = asyncio.create_task(collect(client, request(max_tokens=200)))
            await until(lambda: client.num_open_requests == 1)
            reader.cancel()
            await asyncio.wait([reader])
            assert reader.cancelled()
            (tmp_path / "go").touch()
            await blocks_return(client)

    run(test())


def test_a_slow_reader_gets_all_in_fewer_pieces() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            chunks = []
            async for chunk in client.generate(request(max_tokens=200)):
                chunks.append(chunk)
                if len(chunks) == 1:
                    await collect(client, request("other", max_tokens=220))
            assert len(text_of(chunks)) == 200
            assert len(chunks) < 100

    run(test())


def test_the_minds_refusal_reaches_the_caller_as_the_same_exception() -> None:
    async def test() -> None:
        async with started(engine()) as client:
            with pytest.raises(ContextLengthError) as caught:
                await collect(client, request(max_tokens=1000))
            assert caught.value.param == "max_tokens"
            assert text_of(await collect(client, request(max_tokens=2))) == "ab"

    run(test())


@pytest.mark.parametrize(
    ("options", "param"),
    [({"logit_bias": {999: 1.0}}, "logit_bias"), ({"stop": ("",)}, "stop"), ({"num_sequences": 10_000}, "n")],
)
def test_a_bad_request_names_its_field_and_harms_nobody(options: dict[str, Any], param: str) -> None:
    async def test() -> None:
        async with started(engine()) as client:
            with pytest.raises(InvalidRequestError) as caught:
                await collect(client, request(**options))
            assert caught.value.param == param
            await client.check_health()
            assert client.num_open_requests == 0

    run(test())


def test_an_id_in_use_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(engine(f"alphabet/patient{tmp_path}")) as client:
            first = asyncio.create_task(collect(client, request("same")))
            await until(lambda: client.num_open_requests == 1)
            with pytest.raises(InvalidRequestError, match="in use"):
                await collect(client, request("same"))
            (tmp_path / "go").touch()
            assert text_of(await first) == "abcdefgh"

    run(test())


# Death


async def open_streams(client: EngineClient, count: int) -> list[asyncio.Task[list[OutputChunk]]]:
    readers = [asyncio.create_task(collect(client, request(f"r{n}", max_tokens=200))) for n in range(count)]
    await until(lambda: client.num_open_requests == count)
    return readers


def test_when_the_process_is_killed_every_open_stream_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(engine(f"alphabet/patient{tmp_path}")) as client:
            readers = await open_streams(client, 5)
            os.kill(client.pid, signal.SIGKILL)
            for outcome in await asyncio.gather(*readers, return_exceptions=True):
                assert isinstance(outcome, EngineDeadError)
                assert "SIGKILL" in str(outcome)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await client.check_health()
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await collect(client, request())
            assert "SIGKILL" in str(await client.wait_until_gone())

    run(test())


def test_an_executor_that_fails_is_told_in_its_own_words() -> None:
    async def test() -> None:
        async with started(engine("broken")) as client:
            with pytest.raises(EngineDeadError, match="the fan has stopped"):
                await collect(client, request(max_tokens=200))
            assert "the fan has stopped" in str(await client.wait_until_gone())

    run(test())


def test_a_restarting_engine_serves_again_and_counts_from_zero() -> None:
    async def test() -> None:
        async with started(engine(on_engine_death=EngineDeath.RESTART)) as client:
            first_pid = client.pid
            os.kill(first_pid, signal.SIGKILL)
            await until(lambda: not _is_healthy(client))
            await _until_healthy(client)
            assert client.pid != first_pid
            assert text_of(await collect(client, request(max_tokens=3))) == "abc"

    run(test())


def test_an_engine_that_fails_again_and_again_is_given_up() -> None:
    async def test() -> None:
        async with started(engine("broken", on_engine_death=EngineDeath.RESTART, max_restarts=2)) as client:
            for _ in range(3):
                await _until_healthy(client)
                with pytest.raises(EngineDeadError):
                    await collect(client, request(max_tokens=200))
            assert "3 failures in a row" in str(await client.wait_until_gone())

    run(test())


def _is_healthy(client: EngineClient) -> bool:
    coroutine = client.check_health()
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    except EngineDeadError:
        return False
    raise AssertionError("check_health waited for something")


async def _until_healthy(client: EngineClient) -> None:
    await until(lambda: _is_healthy(client))


def test_an_engine_that_does_not_answer_is_reported_and_still_closes() -> None:
    async def test() -> None:
        client = engine("deaf", hang_timeout_s=0.3, shutdown_timeout_s=0.1)
        async with started(client):
            await until(lambda: not _is_healthy(client))
            with pytest.raises(EngineDeadError, match="not answered"):
                await client.check_health()

    run(test())


def test_a_step_that_never_ends_is_reported(tmp_path: Path) -> None:
    async def test() -> None:
        client = engine(f"alphabet/patient{tmp_path}", step_timeout_s=0.3, shutdown_timeout_s=0.1)
        async with started(client):
            (reader,) = await open_streams(client, 1)
            await until(lambda: not _is_healthy(client))
            with pytest.raises(EngineDeadError, match="no step"):
                await client.check_health()
            (tmp_path / "go").touch()
            await reader
            await _until_healthy(client)

    run(test())


# Starting


def test_an_engine_that_refuses_to_start_says_why_as_the_same_exception() -> None:
    async def test() -> None:
        with pytest.raises(ConfigurationError, match="no room: make some"):
            await engine("refuses").start()

    run(test())


def test_an_engine_that_crashes_while_starting_tells_its_status() -> None:
    async def test() -> None:
        with pytest.raises(EngineDeadError, match="status 7 while starting"):
            await engine("crashes").start()

    run(test())


def test_the_engine_is_told_what_to_load_before_words_are_read() -> None:
    async def test() -> None:
        client = engine("alphabet")
        pids: list[int] = []

        def load(_: Path) -> ByteTokenizer:
            pids.append(client.pid)
            return ByteTokenizer()

        client._load_tokenizer = load
        async with started(client):
            assert pids == [client.pid]

    run(test())


def test_a_start_that_is_interrupted_leaves_no_process() -> None:
    async def test() -> None:
        client = engine("alphabet")
        starting = asyncio.create_task(client.start())
        await until(lambda: client._child is not None)
        pid = client.pid
        starting.cancel()
        await asyncio.wait([starting])
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(test())


def test_what_the_process_writes_for_people_is_handed_on() -> None:
    async def test() -> None:
        lines: list[str] = []
        client = EngineClient(
            EngineConfig(model_path="alphabet"),
            ClientConfig(served_model_names=("letters",)),
            load_tokenizer=lambda _: ByteTokenizer(),
            on_log_line=lines.append,
            command=COMMAND,
        )
        async with started(client):
            await until(lambda: "a line for people" in lines)

    run(test())


def test_closing_leaves_no_process_and_no_folder() -> None:
    async def test() -> None:
        client = engine()
        await client.start()
        assert client._child is not None
        pid, folder = client.pid, client._child._folder
        assert folder.stat().st_mode & 0o777 == 0o700
        await client.close()
        assert not folder.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(test())


def test_the_engine_dies_with_its_parent(tmp_path: Path) -> None:
    """A process in between starts an engine and is killed without a chance to clean up."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "from tests.unit.host.test_client import engine\n"
        "async def main():\n"
        "    client = engine()\n"
        "    await client.start()\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )

    async def test() -> None:
        root = str(Path(__file__).parents[3])
        parent = await asyncio.create_subprocess_exec(
            sys.executable, str(script), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}
        )
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
        await parent.wait()
        await until(lambda: not _is_alive(pid))

    run(test())


def _is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
