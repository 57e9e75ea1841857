"""How much of a workload a prefix cache without limits would find: what a server's hit rate can be compared with."""

from collections.abc import Iterable

from headrace.measure.workload.request import Segment, TokenPrompt, WorkloadRequest


def reusable_share(requests: Iterable[WorkloadRequest]) -> float:
    """The share of prompts' segments that stood, after the same beginning, in an earlier prompt.

    >>> prompts = [TokenPrompt((Segment("a", 9), Segment("b", 9))), TokenPrompt((Segment("a", 9), Segment("c", 9)))]
    >>> reusable_share(WorkloadRequest(request_id=str(i), prompt=p, num_output_tokens=1) for i, p in enumerate(prompts))
    0.25
    """
    seen: set[tuple[int, Segment]] = set()
    names: dict[tuple[int, Segment], int] = {}
    num_segments = num_found = 0
    for request in requests:
        if not isinstance(request.prompt, TokenPrompt):
            continue
        beginning = 0
        for segment in request.prompt.segments:
            place = (beginning, segment)
            num_segments += 1
            num_found += place in seen
            seen.add(place)
            beginning = names.setdefault(place, len(names) + 1)
    return num_found / num_segments if num_segments else 0.0
