"""Turns chat messages into token ids by the model's own template. Never lets a message make a control token.

Called by the runtime. The template comes with the weights and is trusted as far as they are: it may write control
tokens, but it is bounded and sandboxed. Messages are trusted with nothing.

How a control token of the template is told from the same characters in a message: when the template is compiled, each
control token in its own text is signed with a secret that no message can know. After rendering, what is signed becomes
a control id, and everything else is encoded as plain text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from loopwright.core.clock import Clock
from loopwright.core.errors import BadRequest
from loopwright.text.template_sandbox import TemplateSandbox
from loopwright.text.tokenizer import Before, Tokenizer
from loopwright.text.tool_prompts import (
    Message,
    Tool,
    functions,
    told_calls,
    told_in_messages,
    tool_format,
    written_calls,
)

if TYPE_CHECKING:
    from loopwright.core.grammars import ToolFormat

ROLES = ("system", "user", "assistant", "tool")

NO_OPTIONS: Mapping[str, object] = {}

_PLACE = "contentplaceholder"  # stands for an open message's content; a word, so that no template trims or splits it


class ChatTemplate:
    """A model's chat template, ready to render. Raises BadRequest when the source is not a template."""

    def __init__(self, source: str, tokenizer: Tokenizer, clock: Clock) -> None:
        self._tokenizer = tokenizer
        self.tool_format: ToolFormat = tool_format(source)
        self._sandbox = TemplateSandbox(
            source,
            controls=tokenizer.controls,
            variables={
                "bos_token": tokenizer.control_text(tokenizer.bos_id),
                "eos_token": tokenizer.control_text(tokenizer.eos_ids[0] if tokenizer.eos_ids else None),
            },
            clock=clock,
        )
        self._check_control_tokens()

    @property
    def options(self) -> tuple[str, ...]:
        """Names of what the template reads beside messages and tools, such as `enable_thinking`."""
        return self._sandbox.options

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Tool] = (),
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> list[int]:
        """The ids of a whole chat, with exactly one BOS where the model has one. Raises BadRequest that names the
        message or the option at fault, or says why the template refuses the chat."""
        _check(messages)
        return self._from_start(self._sandbox.pieces(self._write(messages, add_generation_prompt, tools, options)))

    def render_open(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: Mapping[str, object] = NO_OPTIONS
    ) -> list[int]:
        """The ids of a chat up to the content of its last message, an assistant's, whose end is not written."""
        _check(messages)
        field = f"messages[{len(messages) - 1}]"
        if not messages or messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls"):
            raise BadRequest(f"{field}: only a message of the assistant without calls can be gone on with", field=field)
        place = self._sandbox.secret + _PLACE
        rendered = self._write([*messages[:-1], {**messages[-1], "content": place}], False, tools, options)
        before, found, _ = rendered.rpartition(place)
        if not found:
            raise BadRequest(f"{field}: the model's chat template does not write what it says", field=field)
        pieces = [(text, control_id) for text, control_id in self._sandbox.pieces(before) if text]
        said = str(messages[-1]["content"])
        if pieces and pieces[-1][1] is None:
            said = pieces.pop()[0] + said
        return self._from_start([*pieces, (said, None)])

    def _from_start(self, pieces: Iterable[tuple[str, int | None]]) -> list[int]:
        """The ids of a context that begins so."""
        ids = self._tokenizer.encode_pieces(list(pieces), "nothing")
        bos_id = self._tokenizer.bos_id
        if self._tokenizer.add_bos and bos_id is not None and ids[:1] != [bos_id]:
            ids.insert(0, bos_id)
        return ids

    def render_delta(
        self,
        messages: Sequence[Message],
        num_done: int,
        is_open: bool,
        add_generation_prompt: bool,
        tools: Sequence[Tool] = (),
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> list[int]:
        """The ids that are missing from a context which holds the first `num_done` messages already.

        With `is_open` the last of those is an assistant's, and the context ends with its content: the text that closes
        it comes first. Raises BadRequest when the template writes done messages differently once others follow."""
        _check(messages)
        _check_done(messages, num_done, is_open)
        if num_done == 0:
            return self.render(messages, add_generation_prompt, tools, options)
        place = self._sandbox.secret + _PLACE
        if is_open:
            opened = {**messages[num_done - 1], "content": place}
            messages = [*messages[: num_done - 1], opened, *messages[num_done:]]
        done = self._write(messages[:num_done], False, tools, options)
        if is_open:
            before, found, _ = done.rpartition(place)
            done = before + place if found else place  # without the place nothing can start with it
        whole = self._write(messages, add_generation_prompt, tools, options)
        if not whole.startswith(done):
            raise BadRequest(
                f"the model's chat template writes the first {num_done} messages differently when others follow",
                hint="start a new context with all the messages",
                field="messages",
            )
        return self._encode(whole[len(done) :], self._what_ends(done))

    def _write(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Tool],
        options: Mapping[str, object],
    ) -> str:
        for name in options:
            if name not in self.options:
                known = f"it reads {', '.join(self.options)}" if self.options else "it reads none"
                raise BadRequest(
                    f"the model's chat template does not read the option {name[:100]!r}; {known}",
                    field=f"options.{name}",
                )
        if any("tool_calls" in one or "tool_call_id" in one for one in messages):
            write = told_calls if self._sandbox.takes_calls else written_calls
            messages = write(messages, self.tool_format)
        if tools and not self._sandbox.takes_tools:
            messages, tools = told_in_messages(messages, tools, self.tool_format), ()
        return self._sandbox.render(messages, add_generation_prompt, functions(tools), options)

    def _check_control_tokens(self) -> None:
        try:
            rendered = self._sandbox.render([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
        except BadRequest:
            return  # a template may refuse so short a chat; a caller who sends one will hear why
        for text, control_id in self._sandbox.pieces(rendered):
            if control_id is None and self._tokenizer.control_ids.intersection(
                self._tokenizer.encode_with_controls(text)
            ):
                raise BadRequest(
                    f"the model's chat template builds control tokens in a way that we cannot follow: {text!r}",
                    hint="it must write them out, or join their parts in order",
                    field="model",
                )

    def _what_ends(self, rendered: str) -> Before:
        pieces = [(text, control_id) for text, control_id in self._sandbox.pieces(rendered) if text]
        return "nothing" if not pieces else "text" if pieces[-1][1] is None else "control"

    def _encode(self, rendered: str, follows: Before) -> list[int]:
        return self._tokenizer.encode_pieces(list(self._sandbox.pieces(rendered)), follows)


def _check(messages: Sequence[Message]) -> None:
    for place, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise BadRequest(
                f"messages[{place}].role is {role!r}; it can be {', '.join(ROLES)}", field=f"messages[{place}].role"
            )
        if not isinstance(content, str):
            raise BadRequest(
                f"messages[{place}].content is {type(content).__name__}; it must be a string",
                field=f"messages[{place}].content",
            )


def _check_done(messages: Sequence[Message], num_done: int, is_open: bool) -> None:
    if not 0 <= num_done <= len(messages):
        raise BadRequest(f"num_done is {num_done}; there are {len(messages)} messages", field="num_done")
    if is_open and (num_done == 0 or messages[num_done - 1]["role"] != "assistant"):
        raise BadRequest("is_open needs an assistant's message as the last one that is done", field="is_open")
