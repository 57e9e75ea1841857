"""What children are given to read."""

import os

import pytest

from headrace.cli.environment import let_children_use_huge_pages


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_children_use_huge_pages_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: str | None, left: str
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", given or "")  # even where there is none: it is put back afterwards
    if given is None:
        monkeypatch.delenv("GLIBC_TUNABLES")
    let_children_use_huge_pages()
    assert os.environ["GLIBC_TUNABLES"] == left
