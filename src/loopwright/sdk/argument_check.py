"""Checks what a program gives to functions of the sdk against their annotations, one way for all of them.

Never changes or copies a value, and never consumes an iterator. `@checked` stands on what a program may call;
`prepare`, at the end of the package, reads the annotations, so that no call waits for that.
"""

import collections.abc
import difflib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar

from loopwright.sdk.errors import BadRequest

ThingT = TypeVar("ThingT", bound=Callable[..., Any])
Fits = Callable[[object], bool]

_MAX_SHOWN = 60  # characters of a value
_TEXTS = (str, bytes, bytearray, memoryview)
_waiting: "list[_Check]" = []


def checked(thing: ThingT) -> ThingT:
    """The function; of a class, the class with all of its public methods and its __init__. Wrong arguments of them are
    BadRequest: the argument, its value and what it may be."""
    if not inspect.isclass(thing):
        return _wrapped(thing)
    for name, one in list(vars(thing).items()):
        if name != "__init__" and name.startswith("_"):
            continue
        if isinstance(one, types.FunctionType):
            setattr(thing, name, _wrapped(one))
        elif isinstance(one, classmethod):
            setattr(thing, name, classmethod(_wrapped(one.__func__)))
    return thing


def behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself of one that is checked; any other as it is."""
    return function.__wrapped__ if hasattr(function, "check") else function  # type: ignore[attr-defined]


def refusal(function: Callable[..., Any], name: str, value: object) -> BadRequest | None:
    """What a function that is checked would raise of one argument; None if it takes it, or nothing checks it."""
    check: _Check | None = getattr(function, "check", None)
    return None if check is None else check.refusal(name, value)


def prepare() -> None:
    """Reads the annotations of all that is checked: what they name exists by now."""
    while _waiting:
        _waiting.pop().read()


def _wrapped(function: ThingT) -> ThingT:
    check = _Check(function)
    _waiting.append(check)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (the function's own)
        check(args, kwargs)
        return function(*args, **kwargs)

    call.check = check  # type: ignore[attr-defined]
    return typing.cast("ThingT", call)


class _Kind:
    """What an annotation lets through. `exact` are types of which every value fits: most calls need no more."""

    __slots__ = ("exact", "fits", "inner", "wanted")

    def __init__(
        self, wanted: str, fits: Fits, exact: Iterable[type] = (), inner: "Callable[[Any], str | None] | None" = None
    ) -> None:
        self.wanted, self.fits, self.exact = wanted, fits, frozenset(exact)
        self.inner = inner  # where in a value of the right type, but with a wrong one inside: "[2]: 'x' is not int"

    def takes_all(self, values: Collection[object]) -> bool:
        return self is _ANYTHING or {*map(type, values)} <= self.exact or all(map(self.fits, values))


class _Check:
    """The arguments of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._title = function.__qualname__.removesuffix(".__init__")
        self._places: list[tuple[int, str, _Kind]] = []  # that do not take anything
        self._named: dict[str, _Kind] = {}
        self._takes_any_name = False

    def read(self) -> None:
        hints = typing.get_type_hints(self._function)
        for place, one in enumerate(inspect.signature(self._function).parameters.values()):
            hint = hints.get(one.name, Any)
            if one.kind is one.VAR_KEYWORD:
                if typing.get_origin(hint) is typing.Unpack:
                    options = typing.get_type_hints(typing.get_args(hint)[0])
                    self._named |= {name: _kind(kind) for name, kind in options.items()}
                else:
                    self._takes_any_name = True
            elif one.kind is not one.VAR_POSITIONAL:
                kind = _kind(hint)
                if one.kind is not one.KEYWORD_ONLY and kind is not _ANYTHING:
                    self._places.append((place, one.name, kind))
                if one.kind is not one.POSITIONAL_ONLY:
                    self._named[one.name] = kind

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        num_args = len(args)
        for place, name, kind in self._places:
            if place >= num_args:
                break
            value = args[place]
            if type(value) not in kind.exact and not kind.fits(value):
                raise self._refused(name, kind, value)
        for name, value in kwargs.items():
            found = self._named.get(name)
            if found is None:
                if not self._takes_any_name:
                    raise self._unknown(name)
            elif type(value) not in found.exact and not found.fits(value):
                raise self._refused(name, found, value)

    def refusal(self, name: str, value: object) -> BadRequest | None:
        kind = self._named.get(name) or {one: kind for _, one, kind in self._places}.get(name)
        return None if kind is None or kind.fits(value) else self._refused(name, kind, value)

    def _refused(self, name: str, kind: _Kind, value: object) -> BadRequest:
        where = kind.inner(value) if kind.inner is not None else None
        said = f"{name}: {shown(value)} is not {kind.wanted}" if where is None else f"{name}{where}"
        hint = "write await before it" if inspect.isawaitable(value) else f"{self._title} takes {kind.wanted} there"
        return BadRequest(said, hint=hint, field=name)

    def _unknown(self, name: str) -> TypeError:
        near = difflib.get_close_matches(name, [one for one in self._named if one != "self"], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(sorted(self._named.keys() - {'self'}))}"
        return TypeError(f"{self._title} takes no {name!r}; {hint}")


def shown(value: object) -> str:
    """A value as a message has it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 (a program's own)
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _kind(hint: Any) -> _Kind:  # noqa: ANN401 (an annotation, in whatever form)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _any_of([_kind(one) for one in arguments])
    if origin is Literal:
        return _Kind(" or ".join(map(repr, arguments)), lambda value: isinstance(value, str) and value in arguments)
    kind = origin or hint
    if (found := _PLAIN.get(kind)) is not None:
        return found
    return _of_class(kind, [_kind(one) for one in arguments if one is not ...]) if inspect.isclass(kind) else _ANYTHING


def _of_class(kind: type, inside: list[_Kind]) -> _Kind:
    if kind is tuple and len(inside) > 1:
        return _pair(inside)
    if issubclass(kind, Mapping):
        return _mapping(*(inside or (_ANYTHING, _ANYTHING)))
    if issubclass(kind, Iterable) and kind.__module__ in ("builtins", "collections.abc"):
        return _series(*(inside or (_ANYTHING,)))
    if typing.Protocol in kind.__bases__:
        names = [name for name in vars(kind) if not name.startswith("_")]
        return _Kind(f"something with {', '.join(names)}", lambda value: all(hasattr(value, name) for name in names))
    return _Kind(kind.__name__, lambda value: isinstance(value, kind))


_ANYTHING = _Kind("anything", lambda value: True)
_PLAIN: dict[Any, _Kind] = {
    int: _Kind("int", lambda value: isinstance(value, int) and not isinstance(value, bool), [int]),
    float: _Kind("float", lambda value: isinstance(value, float | int) and not isinstance(value, bool), [float, int]),
    bool: _Kind("True or False", lambda value: isinstance(value, bool), [bool]),
    str: _Kind("str", lambda value: isinstance(value, str), [str]),
    bytes: _Kind("bytes", lambda value: isinstance(value, _TEXTS[1:]), [bytes]),
    type(None): _Kind("None", lambda value: value is None, [type(None)]),
    Any: _ANYTHING,
    object: _ANYTHING,
    collections.abc.Callable: _Kind("a function", callable),
    range: _Kind("a range", lambda value: isinstance(value, range), [range]),
}


def _any_of(kinds: list[_Kind]) -> _Kind:
    def inner(value: object) -> str | None:
        return next((found for one in kinds if one.inner and (found := one.inner(value)) is not None), None)

    wanted = ", ".join(one.wanted for one in kinds[:-1]) + f" or {kinds[-1].wanted}"
    exact = frozenset[type]().union(*(one.exact for one in kinds))
    return _Kind(wanted, lambda value: any(one.fits(value) for one in kinds), exact, inner)


def _series(item: _Kind) -> _Kind:
    """Anything that can be gone through: of what can be gone through once only, the entries are not looked at."""

    def is_one(value: object) -> bool:
        return isinstance(value, Iterable) and not isinstance(value, (*_TEXTS, Mapping))

    def fits(value: object) -> bool:
        if type(value) is not list and not is_one(value):
            return False
        return not isinstance(value, Collection) or item.takes_all(value)

    def inner(value: Any) -> str | None:  # noqa: ANN401 (any)
        if not is_one(value) or not isinstance(value, Collection):
            return None
        return next((f"[{place}]{_why(item, one)}" for place, one in enumerate(value) if not item.fits(one)), None)

    return _Kind("a list" if item is _ANYTHING else f"a list of {item.wanted}", fits, (), inner)


def _pair(items: list[_Kind]) -> _Kind:
    def fits(value: object) -> bool:
        if not isinstance(value, tuple | list) or len(value) != len(items):
            return False
        return all(item.fits(one) for item, one in zip(items, value, strict=True))

    return _Kind(f"({', '.join(item.wanted for item in items)})", fits)


def _mapping(key: _Kind, item: _Kind) -> _Kind:
    def fits(value: object) -> bool:
        return isinstance(value, Mapping) and key.takes_all(value) and item.takes_all(value.values())

    def inner(value: object) -> str | None:
        if not isinstance(value, Mapping):
            return None
        for one, held in value.items():
            if not key.fits(one):
                return f": the key{_why(key, one)[1:]}"
            if not item.fits(held):
                return f"[{shown(one)}]{_why(item, held)}"
        return None

    said = "a dict" if key is item is _ANYTHING else f"a dict of {key.wanted} to {item.wanted}"
    return _Kind(said, fits, (), inner)


def _why(kind: _Kind, value: object) -> str:
    deeper = kind.inner(value) if kind.inner is not None else None
    return f": {shown(value)} is not {kind.wanted}" if deeper is None else deeper
