"""Rows of several sequences that read the same blocks attend to them together, and nobody's numbers show it."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu.test_ops_torch import Case, dense_attention, make_case

from headrace.engine.ops.protocol import AttentionShape, SequenceSpan

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

from tests.cpu.test_ops_native import ISAS, error_allowed, held, ops_of, run_paged

from headrace.engine.ops.native.ops import KV_DTYPES

PART = 512
"""Tokens of a part of a context."""


def borrow(case: Case, borrower: int, owner: int, blocks: Sequence[tuple[int, int]]) -> None:
    """Blocks of one sequence, and the keys and values in them, become another's: pairs of (its place, the owner's place).
    Both have computed them."""
    size = case.block_size
    block_ids = list(case.spans[borrower].block_ids)
    for mine, theirs in blocks:
        assert mine < num_full_blocks(case, borrower)
        assert theirs < num_full_blocks(case, owner)
        block_ids[mine] = case.spans[owner].block_ids[theirs]
        for held_by in (case.keys, case.values):
            held_by[borrower][mine * size : (mine + 1) * size] = held_by[owner][theirs * size : (theirs + 1) * size]
    span = case.spans[borrower]
    case.spans[borrower] = SequenceSpan(span.num_computed_tokens, span.num_tokens, block_ids)


def num_full_blocks(case: Case, sequence: int) -> int:
    """Those that earlier steps have filled."""
    return case.spans[sequence].num_computed_tokens // case.block_size


def leading(num_tokens: int, block_size: int = 16) -> list[tuple[int, int]]:
    return [(block, block) for block in range(num_tokens // block_size)]


@st.composite
def batches(draw: st.DrawFn) -> Case:
    """Sequences of which most begin with blocks of another: whole parts of a context, pieces of parts, the same blocks in
    another order, or equal blocks behind a beginning of their own."""
    num_kv_heads = draw(st.integers(1, 2))
    shape = AttentionShape(
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([8, 32, 64, 80])),
        scale=0.3,
        softcap=draw(st.sampled_from([None, None, 5.0])),
        window=draw(st.sampled_from([None, None, 40, 600, 1200])),
    )
    block_size = draw(st.sampled_from([16, 16, 48, 64]))
    length = st.one_of(st.sampled_from([0, 511, 512, 1023, 1024, 1040]), st.integers(0, 1600))
    lengths = draw(st.lists(st.tuples(length, st.sampled_from([1, 1, 1, 2, 5, 8, 9, 20])), min_size=2, max_size=7))
    lengths.sort(key=lambda pair: (pair[1] > 1, -pair[0]))
    case = make_case(shape, block_size, lengths, random.Random(draw(st.integers(0, 2**32))))
    for borrower in range(1, len(lengths)):
        owner = draw(st.integers(0, borrower - 1))
        most = min(num_full_blocks(case, borrower), num_full_blocks(case, owner))
        num_shared = draw(st.one_of(st.just(most), st.integers(0, most)))
        places = list(range(num_shared))
        kind = draw(st.sampled_from(["beginning", "beginning", "other order", "behind"]))
        if kind == "other order":
            theirs = draw(st.permutations(places)) if draw(st.booleans()) else [*places[1:2], *places[:1], *places[2:]]
            borrow(case, borrower, owner, list(zip(places, theirs, strict=True)))
        else:
            borrow(case, borrower, owner, [(b, b) for b in places[draw(st.integers(1, 40)) if kind == "behind" else 0 :]])
    return case


def alone(case: Case, sequence: int, *, num_last: int = 0) -> Case:
    """One sequence in a step of its own; of its tokens the last so many."""
    span, queries = case.spans[sequence], case.queries[sequence]
    num_tokens = num_last or span.num_tokens
    first = span.num_computed_tokens + span.num_tokens - num_tokens
    spans = [SequenceSpan(first, num_tokens, span.block_ids)]
    keys, values = [case.keys[sequence]], [case.values[sequence]]
    return Case(case.shape, case.block_size, spans, [queries[-num_tokens:]], keys, values, case.num_blocks)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40)
@given(case=batches(), kv_dtype=st.sampled_from(KV_DTYPES), num_threads=st.sampled_from([1, 2, 16]))
def test_sequences_that_share_any_blocks_attend_as_each_does_alone_and_as_dense_attention(
    isa: str, case: Case, kv_dtype: str, num_threads: int
) -> None:
    together = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype, num_threads=num_threads), case)
    ops = ops_of(isa=isa, kv_dtype=kv_dtype, num_threads=1)
    computed = held(case, kv_dtype, isa)
    for i, ours in enumerate(together):
        expected = dense_attention(computed, i, torch.float32).numpy()
        assert np.abs(ours - expected).max() < error_allowed(kv_dtype, isa) * max(1.0, np.abs(expected).max())
        assert np.array_equal(run_paged(ops, alone(case, i))[0], ours)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("num_heads", [2, 18])
def test_many_sequences_with_one_beginning_have_the_bits_of_each_alone(isa: str, kv_dtype: str, num_heads: int) -> None:
    shape = AttentionShape(num_heads=num_heads, num_kv_heads=2, head_dim=64, scale=0.125)
    lengths = [*((1030 + 13 * i, 1) for i in range(19)), (1100, 2), (1300, 8), (1024, 9)]
    case = make_case(shape, 16, lengths, random.Random(2))
    for i in range(1, 22):
        borrow(case, i, 0, leading(1024 if i % 5 else 700))
    together = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)
    ops = ops_of(isa=isa, kv_dtype=kv_dtype, num_threads=1)
    for i in (0, 5, 17, 19, 20, 21):
        for num_last in {1, case.spans[i].num_tokens}:
            assert np.array_equal(run_paged(ops, alone(case, i, num_last=num_last))[0], together[i][-num_last:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_query_that_is_not_finite_spoils_no_other_that_reads_the_same_blocks(isa: str, kv_dtype: str) -> None:
    shape = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=32, scale=0.2)
    case = make_case(shape, 16, [(600, 1), (550, 1), (520, 1)], random.Random(0))
    for i in (1, 2):
        borrow(case, i, 0, leading(512))
    clean = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)
    case.queries[1][0, 2, 5] = torch.nan
    spoiled = run_paged(ops_of(isa=isa, kv_dtype=kv_dtype), case)
    assert np.array_equal(spoiled[0], clean[0])
    assert np.array_equal(spoiled[2], clean[2])
    assert not np.isfinite(spoiled[1]).all()


# Which rows attend together


def shared_parts(spans: Sequence[tuple[int, int, Sequence[int]]], *, block_size: int = 16) -> list[tuple[int, list[int]]]:
    """(part, rows of the step) of sequences given as (computed tokens, tokens to compute, block ids)."""
    placement = ops_of().place([SequenceSpan(*span) for span in spans], block_size=block_size, windows=[None])
    return placement.shared_parts


def table(num_shared: int, *, first_own: int, num_blocks: int = 80) -> list[int]:
    return [*range(num_shared), *range(first_own, first_own + num_blocks - num_shared)]


def test_every_part_that_sequences_share_is_attended_to_by_all_their_rows_together() -> None:
    spans = [(1100, 1, table(64, first_own=100)), (1200, 1, table(64, first_own=200)), (1100, 1, table(32, first_own=300))]
    assert shared_parts(spans) == [(0, [1, 0, 2]), (1, [1, 0])]


def test_what_is_not_shared_whole_is_left_to_each() -> None:
    one_block_less = [(1100, 1, table(31, first_own=100)), (1100, 1, table(31, first_own=200))]
    assert shared_parts(one_block_less) == []
    not_yet_behind_it = [(511, 1, table(32, first_own=100)), (510, 1, table(32, first_own=200))]
    assert shared_parts(not_yet_behind_it) == []
    last_token_of_it = [(511, 1, table(32, first_own=100)), (511, 1, table(32, first_own=200))]
    assert shared_parts(last_token_of_it) == [(0, [0, 1])]


def test_the_same_blocks_in_another_order_are_other_tokens() -> None:
    swapped = table(32, first_own=200)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    assert shared_parts([(600, 1, table(32, first_own=100)), (600, 1, swapped)]) == []


def test_a_part_that_begins_within_a_block_needs_that_block_too() -> None:
    blocks = list(range(40))
    other = [*range(10), 99, *range(11, 40)]  # holds tokens 480 to 527, of parts 0 and 1
    assert shared_parts([(1600, 1, blocks), (1600, 1, other)], block_size=48) == []
    other = [*range(11), 99, *range(12, 40)]
    assert shared_parts([(1600, 1, blocks), (1600, 1, other)], block_size=48) == [(0, [0, 1])]


def test_many_rows_are_cut_into_equal_tiles_and_long_chunks_stay_by_themselves() -> None:
    spans = [(600, 1, table(32, first_own=100 * (i + 1))) for i in range(20)]
    assert [len(rows) for _, rows in shared_parts(spans)] == [10, 10]
    with_chunk = [
        (600, 3, table(32, first_own=100)),
        (600, 32, table(32, first_own=200)),
        (600, 1, table(32, first_own=300)),
    ]
    assert shared_parts(with_chunk) == [(0, [0, 1, 2, 35])]
