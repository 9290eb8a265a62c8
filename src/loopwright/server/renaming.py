"""Says what is wrong with a request in the words of the request: errors name fields of calls, which it does not have.

Pure. Used by the OpenAI routes for errors that end a run.
"""

from collections.abc import Mapping

import msgspec

from loopwright.core.errors import LoopwrightError, from_info

SAMPLING = "sampling."


def renamed(error: LoopwrightError, names: Mapping[str, str]) -> LoopwrightError:
    """The same error with the request's field. `names` are those of calls and of the request: a whole field, or what it
    begins with up to a # (a pointer into it), a dot or a bracket."""
    field = error.field.removeprefix(SAMPLING)
    for name, own in names.items():
        if field == name or (field.startswith(name) and field[len(name)] in "#.["):
            field = own + field[len(name) :]
            break
    if field == error.field:
        return error
    message = error.message
    if message.startswith(error.field):
        message = field + message.removeprefix(error.field)
    return from_info(msgspec.structs.replace(error.info(), field=field, message=message))
