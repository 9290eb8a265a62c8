"""How an error says which line of a program's metadata raises a limit. Never holds one. Used by who keeps a limit."""


def raise_hint(name: str, limit: float, advice: str = "") -> str:
    """What to do about a limit of that name: the advice, or the line to write. The server's own cap may be lower."""
    higher = f"{limit * 2:g}" if isinstance(limit, float) else str(max(limit * 2, 1))
    line = f"raise it in the program's metadata, up to the server's cap: limits = {{ {name} = {higher} }}"
    return f"{advice}, or {line}" if advice else line
