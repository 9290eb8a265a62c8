"""Tools of the server that are one HTTP exchange each. Never reached by a program directly.

Made and called by the toolbox, which has checked permissions and arguments.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from loopwright.core.errors import BadRequest, LimitExceeded, ToolFailed, Unavailable
from loopwright.core.outside_calls import HttpRequest
from loopwright.runtime.egress import Egress
from loopwright.runtime.tool_config import HttpToolConfig, with_environment
from loopwright.sdk.schema_check import unknown_keywords

MAX_SHOWN_CHARS = 200
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ORIGIN = re.compile(r"https?://[^/?#{}]+")


class Everywhere:
    """The gate of the server's own tools: the configuration names the host."""

    def check_http(self, host: str, port: int) -> None: ...

    def check_address(self, host: str, port: int, found: str) -> None: ...


class HttpTool:
    """One tool. Raises BadRequest when its configuration cannot be honoured, naming what."""

    def __init__(self, name: str, config: HttpToolConfig, egress: Egress) -> None:
        place = f"tools.http.{name}"
        self.name = name
        self.description = config.description
        self.parameters = config.parameters
        self._config = config
        self._egress = egress
        self._secrets: set[str] = set()
        self._headers = with_environment(config.headers, f"{place}.headers", self._secrets)
        self._in_url = _PLACE.findall(config.url)
        _check_schema(config, place, self._in_url)

    async def execute(self, arguments: dict[str, Any], headers: Mapping[str, str]) -> Any:  # noqa: ANN401 (JSON)
        """The body of a successful answer: decoded when it is JSON, else text. Raises ToolFailed for any other."""
        call = self._request(arguments, headers)
        try:
            async with self._egress.open(Everywhere()) as way_out:
                answer = await way_out.request(call)
        except Unavailable as error:
            reason = "no answer in time" if error.field == "timeout_s" else "it cannot be reached"
            raise Unavailable(f"the tool {self.name}: {reason}") from None  # not the URL: it is the server's own
        except LimitExceeded:
            raise ToolFailed(f"the tool {self.name} answered with more than a body may have, 4 MiB") from None
        text = self._without_secrets(answer["body"].decode(errors="replace"))
        if not 200 <= answer["status"] < 300:
            raise ToolFailed(f"the tool {self.name} answered with status {answer['status']}: {text[:MAX_SHOWN_CHARS]}")
        if "json" not in answer["headers"].get("content-type", ""):
            return text
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolFailed(f"the tool {self.name} answered with what is no JSON: {error}") from None

    def _request(self, arguments: dict[str, Any], trace: Mapping[str, str]) -> HttpRequest:
        config = self._config
        rest = {name: value for name, value in arguments.items() if name not in self._in_url}
        is_query = config.method in ("GET", "DELETE")
        headers = {**({} if is_query else {"content-type": "application/json"}), **trace, **self._headers}
        return HttpRequest(
            method=config.method,
            url=_PLACE.sub(lambda found: self._in_path(found[1], arguments), config.url),
            params={name: _as_text(value) for name, value in rest.items()} if is_query else {},
            headers=headers,
            body=b"" if is_query else msgspec.json.encode(rest),
            timeout_s=config.timeout_s,
        )

    def _in_path(self, name: str, arguments: dict[str, Any]) -> str:
        """One segment of the path, which can never be two, nor lead up."""
        text = _as_text(arguments[name])
        if text in ("", ".", ".."):
            raise BadRequest(f"{self.name}.{name}: {text!r} is no part of a path", field=f"{self.name}.{name}")
        return quote(text, safe="")

    def _without_secrets(self, text: str) -> str:
        """A service may send back what it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text


def _check_schema(config: HttpToolConfig, place: str, in_url: list[str]) -> None:
    if not _ORIGIN.match(config.url) or "{" in _PLACE.sub("", config.url):
        raise BadRequest(
            f"{place}.url is {config.url!r}; wanted: http or https, a host without placeholders, a path with {{name}}",
            field=f"{place}.url",
        )
    if config.parameters.get("type") != "object":
        raise BadRequest(f"{place}.parameters is no schema of type object", field=f"{place}.parameters")
    if unknown := unknown_keywords(config.parameters):
        words = ", ".join(sorted(unknown))
        raise BadRequest(f"{place}.parameters: {words}: not enforced here", field=f"{place}.parameters")
    if missing := set(in_url) - set(config.parameters.get("required", ())):
        names = ", ".join(sorted(missing))
        raise BadRequest(f"{place}.url names {names}, which the parameters do not require", field=f"{place}.url")


def _as_text(value: Any) -> str:  # noqa: ANN401 (JSON)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
