"""GLM 4.5 and later, and Ling, Laguna, Spark after it: keys and values in tags of their own.

<tool_call>turn_wheel
<arg_key>rpm</arg_key>
<arg_value>3</arg_value>
</tool_call>
"""

import re

from headrace.server.parsing.reader import Markers, NotAsExpected, Reading
from headrace.server.tools.tagged import TaggedArgumentParser

_CALL = "<tool_call>"
_CALL_END = "</tool_call>"
_KEY = "<arg_key>"
_KEY_END = "</arg_key>"
_VALUE = "<arg_value>"
_VALUE_END = Markers(("</arg_value>",))
_KEY_RUN = re.compile(r"[^<\n]+")


class GlmParser(TaggedArgumentParser):
    markers = (_CALL,)
    shown_tokens = (_CALL_END, _KEY, _KEY_END, _VALUE, "</arg_value>")

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        yield from reader.space()
        name = yield from self._name()
        yield from reader.space()
        if not ((yield from reader.is_next(_KEY)) or (yield from reader.is_next(_CALL_END))):
            raise NotAsExpected
        self._commit(name)
        self._write_arguments("{")
        is_first = True
        while not (yield from reader.literal(_CALL_END)):
            yield from reader.expect(_KEY)
            argument = yield from self._argument_name(_KEY_RUN, _KEY_END, is_first=is_first)
            yield from reader.space()
            yield from reader.expect(_VALUE)
            yield from self._argument(name, argument, _VALUE_END, (_KEY, _CALL_END))
            is_first = False
            yield from reader.space()
        self._write_arguments("}")
