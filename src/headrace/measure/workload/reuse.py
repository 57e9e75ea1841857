"""How much of a workload a prefix cache without limits would find: what a server's hit rate can be compared with."""

from collections.abc import Iterable
from typing import NamedTuple

from headrace.measure.workload.request import Segment, TokenPrompt, WorkloadRequest


class Reuse(NamedTuple):
    """Segments, and their tokens, that stood after the same beginning in an earlier prompt; beside all there are."""

    num_segments: int
    num_segments_found: int
    num_tokens: int
    num_tokens_found: int

    @property
    def segment_share(self) -> float:
        return self.num_segments_found / self.num_segments if self.num_segments else 0.0

    @property
    def token_share(self) -> float:
        return self.num_tokens_found / self.num_tokens if self.num_tokens else 0.0


def reuse(requests: Iterable[WorkloadRequest]) -> Reuse:
    """In the order of the requests. Prompts that are not made of segments share nothing that can be told here.

    >>> prompts = [TokenPrompt((Segment("a", 9), Segment("b", 3))), TokenPrompt((Segment("a", 9), Segment("c", 3)))]
    >>> reuse(WorkloadRequest(request_id=str(i), prompt=p, num_output_tokens=1) for i, p in enumerate(prompts))
    Reuse(num_segments=4, num_segments_found=1, num_tokens=24, num_tokens_found=9)
    """
    names: dict[tuple[int, Segment], int] = {}
    num_segments = num_segments_found = num_tokens = num_tokens_found = 0
    for request in requests:
        beginning = 0
        for segment in request.prompt.segments if isinstance(request.prompt, TokenPrompt) else ():
            place = (beginning, segment)
            num_segments += 1
            num_tokens += segment.num_tokens
            if place in names:
                num_segments_found += 1
                num_tokens_found += segment.num_tokens
            beginning = names.setdefault(place, len(names) + 1)
    return Reuse(num_segments, num_segments_found, num_tokens, num_tokens_found)
