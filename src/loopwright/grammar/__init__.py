"""Grammars that a text is held to: checked, compiled, followed token by token. The only place with llguidance."""
