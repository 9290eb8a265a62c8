"""Owns what one run has names for, and what each name does not see of its page. Never takes a block or a slot.

Made by the resource manager for each run that is open; read when calls are issued.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from loopwright.control.bases import Bases
from loopwright.control.name_table import NameTable
from loopwright.control.ordering import RunOrder
from loopwright.control.page_content import Root
from loopwright.core.calls import MaskPage
from loopwright.core.errors import BadRequest
from loopwright.core.ids import BlockId, EmbedName, PageName, SlotId


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one run has names for."""

    pages: NameTable[PageName, BlockId]
    embeds: NameTable[EmbedName, SlotId]
    root: Root  # before the first page: whose pages they are
    bases: Bases
    order: RunOrder = field(default_factory=RunOrder)
    masked: dict[PageName, int] = field(default_factory=dict)  # bit i: the name does not see offset i of its page

    def mask(self, call: MaskPage, block_size: int) -> None:
        """Says what the name does not see of its page. Raises NotFound, BadRequest."""
        self.pages.find(call.page, "page")
        if len(call.keep) != block_size:
            raise BadRequest(f"keep: {len(call.keep)} of them for the page's {block_size}", field="keep")
        self.masked[call.page] = sum(1 << offset for offset, is_kept in enumerate(call.keep) if not is_kept)

    def pass_masks(self, sources: Sequence[PageName], targets: Sequence[PageName] = ()) -> None:
        """To the targets; without any, the sources lose theirs."""
        if not self.masked:
            return
        if not targets:
            for name in sources:
                self.masked.pop(name, None)
        for source, target in zip(sources, targets, strict=False):
            if source in self.masked:
                self.masked[target] = self.masked[source]
