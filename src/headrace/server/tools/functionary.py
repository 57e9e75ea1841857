"""Functionary, in its two newer formats.

v3.1: `<function=turn_wheel>{"rpm": 3}</function>`, and `<|python_tag|>` before code for a tool named `python`.
v3.2 addresses everything it says, and its prompt ends where the first address begins:

    all
    Turning it now.>>>turn_wheel
    {"rpm": 3}
"""

from headrace.server.parsing.json_text import escaped, json_value
from headrace.server.parsing.reader import Markers, NotAsExpected, Reading, TextEnded
from headrace.server.tools.call_form import CallForm, CallRequest, any_text, each_tool, one_of, sequence, tagged, text
from headrace.server.tools.parser import ToolParser

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PYTHON_TAG = "<|python_tag|>"
_PYTHON = "python"
_ADDRESS = ">>>"
_EVERYBODY = "all"


class FunctionaryV31Parser(ToolParser):
    markers = (_FUNCTION, _PYTHON_TAG)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = each_tool(asked.schemas, "", ">", _FUNCTION_END)
        return CallForm(begin=_FUNCTION, calls=calls, separator="")

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        if marker == _PYTHON_TAG:
            if _PYTHON not in self.tools:
                raise NotAsExpected
            self._commit(_PYTHON)
            self._write_arguments('{"code": "')
            yield from reader.until(Markers(()), lambda text: self._write_arguments(escaped(text)))
            self._write_arguments('"}')
            return
        name = yield from self._name()
        yield from reader.expect(">")
        yield from reader.space()
        if (yield from reader.peek()) != "{":
            raise NotAsExpected
        self._commit(name)
        yield from json_value(reader, self._write_arguments)
        yield from reader.space()
        yield from reader.expect(_FUNCTION_END)


class FunctionaryV32Parser(ToolParser):
    markers = (_ADDRESS,)

    @classmethod
    def form(cls, asked: CallRequest) -> CallForm | None:
        calls = each_tool(asked.schemas, "", "\n", "")
        words = any_text(excludes=[_ADDRESS])
        called = sequence(calls, {"type": "star", "content": sequence(text(_ADDRESS), calls)})
        said = tagged(f"{_EVERYBODY}\n", words, _ADDRESS)
        free = sequence({"type": "optional", "content": said}, called)
        free = one_of([free, sequence(text(f"{_EVERYBODY}\n"), words)])
        return CallForm(calls=calls, separator=_ADDRESS, answer_begin=f"{_EVERYBODY}\n", free=free)

    def _parse(self) -> Reading[None]:
        self._begin_attempt()
        yield from self._try(self._calls(""))
        yield from super()._parse()

    def _calls(self, marker: str) -> Reading[None]:
        reader = self.reader
        name = yield from self._name()
        yield from reader.expect("\n")
        if name == _EVERYBODY:
            return
        if name not in self.tools:
            raise NotAsExpected
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            self._commit(name)
            yield from json_value(reader, self._write_arguments)
        elif name == _PYTHON:
            self._commit(name)
            yield from self._code()
        else:
            raise NotAsExpected

    def _code(self) -> Reading[None]:
        """Everything up to the next address is code."""
        reader = self.reader
        address = Markers((_ADDRESS,))
        self._write_arguments('{"code": "')
        while True:
            text, found = reader.take_before(address)
            if text:
                self._write_arguments(escaped(text))
            if found:
                known = [f"{_ADDRESS}{name}\n" for name in (_EVERYBODY, *self.tools.names)]
                for one in known:
                    if (yield from reader.is_next(one)):
                        self._write_arguments('"}')
                        return
                self._write_arguments(escaped(reader.take_marker(address)))
            elif reader.ended:
                self._write_arguments('"}')
                raise TextEnded
            else:
                yield
