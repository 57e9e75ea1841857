"""Finding stop strings in a text that arrives in pieces, and holding back no more of it than could begin one.

Knows characters. Does not know tokens or requests. One automaton (Aho and Corasick, 1975) watches for all strings at once:
the cost of a character does not grow with their number, and its state says exactly how much must be held back.
"""

import re
from collections import deque
from collections.abc import Sequence

from headrace.base.errors import InvalidRequestError


class StopStrings:
    """The strings of one request, compiled. Immutable: all its continuations share one."""

    __slots__ = ("_failures", "_found", "_num_begun", "_steps", "begins", "strings")

    def __init__(self, strings: Sequence[str]) -> None:
        if not all(strings):
            raise InvalidRequestError("stop must not contain an empty string: every text has one", param="stop")
        self.strings = tuple(strings)
        self.begins = re.compile(f"[{re.escape(''.join(sorted({string[0] for string in strings})))}]" if strings else "(?!)")
        """Finds the next character that could begin a stop string."""
        self._steps: list[dict[str, int]] = [{}]
        self._num_begun = [0]
        self._found: list[int | None] = [None]
        self._add_strings()
        self._failures = [0] * len(self._steps)
        self._link_failures()

    def step(self, state: int, character: str) -> int:
        """The state after one more character; state 0 is where nothing has begun."""
        while (following := self._steps[state].get(character)) is None:
            if state == 0:
                return 0
            state = self._failures[state]
        return following

    def num_begun(self, state: int) -> int:
        """How many characters at the end of the text begin some stop string that is not complete: the longest such end."""
        return self._num_begun[state]

    def found(self, state: int) -> int | None:
        """Which string ends here, as an index: of several, the first listed."""
        return self._found[state]

    def _add_strings(self) -> None:
        for index, string in enumerate(self.strings):
            state = 0
            for character in string:
                following = self._steps[state].setdefault(character, len(self._steps))
                if following == len(self._steps):
                    self._steps.append({})
                    self._num_begun.append(self._num_begun[state] + 1)
                    self._found.append(None)
                state = following
            if self._found[state] is None:
                self._found[state] = index

    def _link_failures(self) -> None:
        """Breadth first: a state's failure is shallower than itself, so it is complete when it is needed."""
        queue = deque(self._steps[0].values())
        while queue:
            state = queue.popleft()
            ends_here = [index for index in (self._found[state], self._found[self._failures[state]]) if index is not None]
            self._found[state] = min(ends_here, default=None)
            if not self._steps[state]:
                # Nothing goes on from a complete string; what may go on is what its end begins.
                self._num_begun[state] = self._num_begun[self._failures[state]]
            for character, following in self._steps[state].items():
                self._failures[following] = self.step(self._failures[state], character)
                queue.append(following)


class StopWatch:
    """Watches one text. `feed` it the pieces; what it returns may be shown."""

    __slots__ = ("_held", "_include", "_state", "_stops")

    def __init__(self, stops: StopStrings, *, include_in_output: bool) -> None:
        self._stops = stops
        self._include = include_in_output
        self._state = 0
        self._held = ""

    def feed(self, text: str, *, honoured: bool = True) -> tuple[str, str | None]:
        """The text that is released by this piece, and the stop string that it completed.

        The string that is completed first ends the text, wherever the pieces were cut; of several that end at the same
        character, the first listed. A string that is completed while not `honoured` is text like any other. After a
        stop string nothing more may be fed.
        """
        stops, state, position = self._stops, self._state, 0
        while position < len(text):
            if state == 0:
                # Most text begins nothing: let the regular expression engine run over it.
                beginning = stops.begins.search(text, position)
                if beginning is None:
                    break
                position = beginning.start()
            state = stops.step(state, text[position])
            position += 1
            index = stops.found(state)
            if index is not None and honoured:
                return self._release_up_to_stop(text[:position], stops.strings[index]), stops.strings[index]
        self._state = state
        return self._release_settled(text), None

    def finish(self) -> str:
        """What was held back: the text ends here, so it begins nothing."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _release_up_to_stop(self, text: str, stop: str) -> str:
        text, self._held = self._held + text, ""
        return text if self._include else text[: len(text) - len(stop)]

    def _release_settled(self, text: str) -> str:
        if self._include:
            # A stop string that stays in the output is shown as it comes.
            return text
        text = self._held + text
        num_settled = len(text) - self._stops.num_begun(self._state)
        self._held = text[num_settled:]
        return text[:num_settled]
