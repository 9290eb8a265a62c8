"""Owns the pages that runs lend to each other by name. Never knows queues or calls beyond what they ask for.

Called by the resource manager when an export's or import's turn has come, and when a run ends. An export holds its
blocks as a run does, so they outlive the run; whoever imports holds them too. Nobody writes to a block that is lent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from loopwright.control.block_pool import BlockPool
from loopwright.control.name_table import NameTable
from loopwright.control.ordering import Lent, Page
from loopwright.control.page_content import PageKey, Root
from loopwright.control.prefixes import Prefixes
from loopwright.core.calls import ExportPages, ImportPages
from loopwright.core.errors import BadRequest, LimitExceeded, NotFound
from loopwright.core.ids import BlockId, PageName, RunId, TenantId
from loopwright.core.results import ExportInfo, Imported

MAX_EXPORTS = 1024
"""Names of one identity."""

MAX_EXPORTED_SHARE = 0.5
"""Of the pool: what nobody runs with must not crowd out who does."""

Key: TypeAlias = tuple[TenantId, str]


@dataclass(frozen=True, slots=True)
class Export:
    """Pages that are lent."""

    run_id: RunId
    call: ExportPages
    block_ids: tuple[BlockId, ...]
    lent: tuple[Lent, ...]  # of each block
    known: tuple[PageKey, ...]  # what is known of the first blocks

    @property
    def info(self) -> ExportInfo:
        return ExportInfo(self.call.name, len(self.call.positions), len(self.block_ids), self.call.persistent)


class Exports:
    """Every export, by identity and name."""

    def __init__(self, blocks: BlockPool, prefixes: Prefixes) -> None:
        self._blocks, self._prefixes = blocks, prefixes
        self._max_pages = int(blocks.num_total * MAX_EXPORTED_SHARE)
        self._exports: dict[Key, Export] = {}
        self._num_pages = 0
        self._of_runs: dict[RunId, set[Key]] = {}  # those that end with the run

    def add(self, tenant: TenantId, run_id: RunId, call: ExportPages, pages: Sequence[Page], root: Root) -> None:
        """Lends pages that hold KV and their blocks. Raises BadRequest if the name is taken, LimitExceeded."""
        key = (tenant, call.name)
        self._check_room(key, len(pages))
        block_ids = tuple(page.id for page in pages if page.id is not None)
        assert len(block_ids) == len(pages), "a page that holds KV has no block"
        self._blocks.share(block_ids)
        known = self._prefixes.keys_of(pages, root)
        self._exports[key] = Export(run_id, call, block_ids, tuple(map(_lend, pages)), known)
        self._num_pages += len(block_ids)
        if not call.persistent:
            self._of_runs.setdefault(run_id, set()).add(key)

    def remove(self, tenant: TenantId, name: str) -> None:
        """Ends an export. Raises NotFound."""
        export = self._find(tenant, name)
        del self._exports[tenant, name]
        if not export.call.persistent:
            self._of_runs[export.run_id].remove((tenant, name))
        self._num_pages -= len(export.block_ids)
        for block_id, lent in zip(export.block_ids, export.lent, strict=True):
            self._blocks.give(block_id)
            lent.num_holders -= 1

    def import_into(
        self,
        table: NameTable[PageName, BlockId],
        tenant: TenantId,
        call: ImportPages,
        pages: Sequence[Page],
        root: Root,
    ) -> Imported:
        """Gives pages that have no block those of an export. Raises NotFound, and BadRequest for another number."""
        export = self._find(tenant, call.name)
        if len(pages) != len(export.block_ids):
            raise BadRequest(
                f"pages: {len(pages)} names for the {len(export.block_ids)} pages of {call.name!r}",
                field="pages",
                hint="exported_pages says how many an export has",
            )
        self._blocks.share(export.block_ids)
        table.back_with(pages, export.block_ids)
        for page, lent in zip(pages, export.lent, strict=True):
            page.lent = lent
            lent.num_holders += 1
        self._prefixes.note(pages, export.known, root)
        told = export.call
        return Imported(len(told.positions), len(pages), told.positions, told.tokens, told.note)

    def infos(self, tenant: TenantId, prefix: str) -> tuple[ExportInfo, ...]:
        """The exports of one identity whose names begin with `prefix`, by name."""
        mine = [export.info for (owner, name), export in self._exports.items() if owner == tenant]
        return tuple(sorted((one for one in mine if one.name.startswith(prefix)), key=lambda one: one.name))

    def end_run(self, run_id: RunId) -> None:
        """Ends what a run exported and did not ask to persist."""
        for tenant, name in tuple(self._of_runs.get(run_id, ())):
            self.remove(tenant, name)
        self._of_runs.pop(run_id, None)

    def block_ids(self) -> list[BlockId]:
        """The blocks that exports hold, each as often as they do. Asserts that their number is counted right."""
        held = [block_id for export in self._exports.values() for block_id in export.block_ids]
        assert self._num_pages == len(held), f"{self._num_pages} pages counted as exported, {len(held)} are"
        return held

    def lent(self) -> list[Lent]:
        """As `block_ids`, for what the blocks' holders count in."""
        return [lent for export in self._exports.values() for lent in export.lent]

    def _find(self, tenant: TenantId, name: str) -> Export:
        export = self._exports.get((tenant, name))
        if export is None:
            raise NotFound(
                f"name: nothing is exported as {name!r}", field="name", hint="exported_pages lists the names"
            )
        return export

    def _check_room(self, key: Key, num_pages: int) -> None:
        tenant, name = key
        if key in self._exports:
            raise BadRequest(f"name: {name!r} is exported already", field="name", hint="unexport it, or take another")
        num_names = sum(owner == tenant for owner, _ in self._exports)
        if num_names >= MAX_EXPORTS:
            raise LimitExceeded(f"name: {num_names} exports are there; the limit is {MAX_EXPORTS}", field="name")
        if self._num_pages + num_pages > self._max_pages:
            raise LimitExceeded(
                f"pages: {self._num_pages} are exported and {num_pages} more are asked for; the limit is "
                f"{self._max_pages} of the pool's {self._blocks.num_total}",
                field="pages",
                hint="unexport what nobody imports",
            )


def _lend(page: Page) -> Lent:
    """One holder more of the page's block."""
    if page.lent is None:
        page.lent = Lent()
        page.lent.num_holders = 1  # the page itself
    page.lent.num_holders += 1
    return page.lent
