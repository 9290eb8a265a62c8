"""Makes the place where a server's runs meet, from its configuration. Used by `system` and `children`."""

from pathlib import Path

from loopwright.compose.config import RuntimeConfig
from loopwright.runtime.exchange import LocalExchange


def make_exchange(config: RuntimeConfig) -> LocalExchange:
    """One for all processes of a server. The caller closes it."""
    return LocalExchange(Path(config.state_dir) if config.state_dir else None)
