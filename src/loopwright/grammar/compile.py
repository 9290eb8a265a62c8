"""Compiles one grammar: its source is checked, written for llguidance, and tried. Never caches, never starts a thread.

Called by the pool. Every way out is a grammar that is enforced as it is written, or a BadRequest that says where it
cannot be.
"""

import json
from collections.abc import Collection
from typing import assert_never

from llguidance import LLMatcher, LLParserLimits

from loopwright.core.errors import BadRequest, LoopwrightError
from loopwright.core.grammars import MAX_GRAMMAR_BYTES, Grammar
from loopwright.grammar.json_schema import Schema, read_schema, subschemas
from loopwright.grammar.lark import read_lark
from loopwright.grammar.matcher import MatcherState, TokenGrammar, first_line
from loopwright.grammar.pattern import whole_pattern
from loopwright.grammar.schema_values import schema_error
from loopwright.grammar.tool_calls import read_tool_calls, tool_error
from loopwright.grammar.vocabulary import Vocabulary

SCHEMA_OPTIONS: dict[str, object] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',  # no \\u: a key written with it could get around the schema of its property
}
"""JSON is written as json.dumps(ensure_ascii=False) writes it: where nothing is left to choose, tokens are forced."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=50_000,  # bounds the text that is forced in one go too: about half as many bytes, some 30 ms
    max_lexer_states=50_000,  # 1 to 2 kB each
    max_grammar_size=100_000,
    verbose_errors=False,
)
MAX_CHOICES = 4096
_FAULTS = {
    "oneOf": "oneOf is enforced where type or a required constant tells its options apart; take anyOf",
    "Regex is empty": "no string has this pattern, format and length",
}
"""What we say of faults for which llguidance shows what only it knows."""

_MAX_TRIED_BYTES = 400_000  # of schemas that are compiled to find which part of one cannot be enforced


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> TokenGrammar:
    """Raises BadRequest."""
    try:
        num_bytes = len(grammar.source.encode())
    except UnicodeEncodeError:
        raise BadRequest("the grammar is not valid Unicode", field="grammar.source") from None
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise BadRequest(f"the grammar has {num_bytes} bytes; the limit is {MAX_GRAMMAR_BYTES}", field="grammar.source")
    try:
        return _compile(grammar, vocabulary)
    except RecursionError:
        raise BadRequest("the grammar is nested too deep to be read", field="grammar.source") from None


def _compile(grammar: Grammar, vocabulary: Vocabulary) -> TokenGrammar:
    match grammar.kind:
        case "json_schema" | "json_object":
            return _compile_schema(_schema(grammar), vocabulary)
        case "regex" | "lark" | "choice":
            return _started(_written(grammar), vocabulary)
        case "tool_calls":
            return _compile_tool_calls(grammar.source, vocabulary)
    assert_never(grammar.kind)


def _written(grammar: Grammar) -> str:
    """The grammar as llguidance takes it."""
    match grammar.kind:
        case "regex":
            return LLMatcher.grammar_from_regex(_pattern(grammar.source))
        case "choice":
            return LLMatcher.grammar_from_regex(_choice(grammar.source))
        case "lark":
            if not grammar.source.strip():
                raise BadRequest("there is no grammar", field="grammar.source")
            return LLMatcher.grammar_from_lark(read_lark(grammar.source, SCHEMA_OPTIONS))
    return _schema_grammar(_schema(grammar))


def _schema(grammar: Grammar) -> Schema:
    if grammar.kind == "json_schema":
        return read_schema(grammar.source)
    if grammar.source:
        raise BadRequest("json_object takes no source", field="grammar.source", hint="json_schema does")
    return {"type": "object"}


def _compile_schema(schema: Schema, vocabulary: Vocabulary) -> TokenGrammar:
    matcher, fault = _try(_schema_grammar(schema), vocabulary)
    if fault is not None:
        raise schema_error(_locate(schema, fault, vocabulary), fault)
    return TokenGrammar(vocabulary, matcher)


def _compile_tool_calls(source: str, vocabulary: Vocabulary, loose: frozenset[str] = frozenset()) -> TokenGrammar:
    """Of a tool that is not strict and whose schema cannot be held, any object will do."""
    marks = vocabulary.call_marks
    grammar = read_tool_calls(source, SCHEMA_OPTIONS, marks, loose)
    written = LLMatcher.grammar_from_lark(grammar.lark)
    if grammar.answer is not None:
        _check_answer(_compile(grammar.answer, vocabulary).start(), grammar.opening, vocabulary)
        written = _with_answer(grammar.lark, _written(grammar.answer))
    matcher, fault = _try(written, vocabulary, marks.values())
    for name, schema in grammar.schemas if fault is not None else ():  # which tool is it that cannot be held?
        if (of_tool := _try(_schema_grammar(schema), vocabulary)[1]) is not None:
            if name not in grammar.strict | loose:
                return _compile_tool_calls(source, vocabulary, loose | {name})
            raise tool_error(name, _locate(schema, of_tool, vocabulary), of_tool)
    if fault is not None:
        raise BadRequest(f"tools: {fault}", field="tools")
    return TokenGrammar(vocabulary, matcher, marks.values())


def _check_answer(state: MatcherState, opening: str, vocabulary: Vocabulary) -> None:
    """Raises BadRequest if an answer could begin as a call does: no reader could tell them apart, nor would llguidance
    go on with both."""
    if opening and state.validated(vocabulary.tokens.tokenize_str(opening)):
        raise BadRequest(
            f"the answer could begin with {opening!r}, and so do the calls of this model",
            field="grammar.source",
            hint='send the form of the answer or the tools; tool_choice "none" and "required" take both',
        )


def _with_answer(lark: str, answer: str) -> str:
    """Both, as one grammar of llguidance whose rule `@answer` is the second."""
    inner = json.loads(answer)["grammars"][0] if answer.lstrip().startswith("{") else {"lark_grammar": answer}
    return json.dumps({"grammars": [{"name": "turn", "lark_grammar": lark}, {**inner, "name": "answer"}]})


def _started(grammar: str, vocabulary: Vocabulary) -> TokenGrammar:
    matcher, fault = _try(grammar, vocabulary)
    if fault is not None:
        raise BadRequest(f"grammar: {fault}", field="grammar.source")
    return TokenGrammar(vocabulary, matcher)


def _try(grammar: str, vocabulary: Vocabulary, marks: Collection[int] = ()) -> tuple[LLMatcher, str | None]:
    """A matcher at the start of the text, and what is wrong with it."""
    matcher = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=LIMITS)
    fault = matcher.get_error() or "; ".join(matcher.get_grammar_warnings())
    if fault:
        return matcher, next((said for words, said in _FAULTS.items() if words in fault), first_line(fault))
    return matcher, _start_fault(TokenGrammar(vocabulary, matcher, marks).start())


def _start_fault(state: MatcherState) -> str | None:
    """What is wrong with the first steps of a text: up to where something is left to choose."""
    try:
        if not state.has_text:
            return "no text but the empty one follows it"
        for token_id in state.forced():
            state.accept(token_id)
        state.allowed_bits(())
    except LoopwrightError as error:
        return error.message
    return None


def _schema_grammar(schema: Schema) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=SCHEMA_OPTIONS)  # type: ignore[arg-type]


def _locate(root: Schema, fault: str, vocabulary: Vocabulary) -> str:
    """The pointer of the innermost schema that has the fault by itself."""
    definitions: Schema = {name: root[name] for name in ("$defs", "definitions") if name in root}
    pointer, schema, num_left = "", root, _MAX_TRIED_BYTES
    while True:
        for at, inner in subschemas(schema, pointer):
            if not isinstance(inner, dict):
                continue
            grammar = _schema_grammar({**definitions, **inner})
            num_left -= len(grammar)
            if num_left < 0:
                return pointer
            if _try(grammar, vocabulary)[1] == fault:
                pointer, schema = at, inner
                break
        else:
            return pointer


def _pattern(source: str) -> str:
    if not source:
        raise BadRequest("there is no regular expression", field="grammar.source")
    try:
        return whole_pattern(source)
    except BadRequest as error:
        raise BadRequest(error.message, field="grammar.source") from None


def _choice(source: str) -> str:
    try:
        texts = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the choices are not JSON: {error}", field="grammar.source") from None
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_CHOICES:
        raise BadRequest(f"the choices must be a list of 1 to {MAX_CHOICES} strings", field="grammar.source")
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise BadRequest(f"choice {place} is not a string of at least one character", field="grammar.source")
    return (
        f"(?:{'|'.join(map(_quoted, texts))})"  # as one lexeme: as rules of a grammar, so many are too many to follow
    )


def _quoted(text: str) -> str:
    """A regular expression for one text."""
    return "".join(one if one.isascii() and one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)
