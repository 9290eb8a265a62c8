"""Owns one run's names of pages, or of embeds: what each is bound to, and how much the run holds. Never knows calls.

Called by the resource manager. A page or embed lives while a name is bound to it or a call that is not over holds it;
when the last of both is gone its block or slot goes back to the pool.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from loopwright.control.moment import Moment
from loopwright.control.ordering import Resource
from loopwright.control.pool import Pool
from loopwright.core.errors import BadRequest, LimitExceeded, LoopwrightError, NotFound, Overloaded
from loopwright.core.raise_hint import raise_hint

NameT = TypeVar("NameT", bound=int)
IdT = TypeVar("IdT", bound=int)

MAX_NAMES_PER_UNIT = 64
"""Names that a run may bind for each unit of its limit: sharing costs no block, but it costs memory here."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What messages call the things of a table, and which errors say that there are no more."""

    noun: str  # page, embed
    over_limit: type[LimitExceeded]
    none_free: type[LimitExceeded] | type[Overloaded]


class NameTable(Generic[NameT, IdT]):
    """Names of one kind in one run. Every method that refuses leaves the table as it was."""

    def __init__(self, kind: Kind, pool: Pool[IdT], max_held: int, moment: Moment) -> None:
        self.names: dict[NameT, Resource[IdT]] = {}
        self.num_held = 0  # pages or embeds that live
        self.num_backed = 0  # those of them that have a unit of the pool
        self._moment = moment
        self._unit_seconds, self._counted_s = 0.0, moment.now_s  # what was held for how long, until when
        self.num_unbound = self.num_moved = 0  # names that were unbound; resources that lost their unit, or got one
        self._kept: list[list[Resource[IdT]]] = []
        self._orphans: set[Resource[IdT]] = set()  # kept, without names, and held by no call
        self._kind = kind
        self._pool = pool
        self._max_held = max_held
        self._max_names = max_held * MAX_NAMES_PER_UNIT

    def find(self, name: NameT, field: str) -> Resource[IdT]:
        """What the name is bound to. Raises NotFound."""
        found = self.names.get(name)
        if found is None:
            raise NotFound(
                f"{field}: {self._kind.noun} {name} is not bound; the run has {len(self.names)} names of "
                f"{self._kind.noun}s",
                field=field,
                hint="a name counts in the run that bound it alone",
            )
        return found

    def find_all(self, names: Sequence[NameT], field: str) -> list[Resource[IdT]]:
        """What the names are bound to. Raises NotFound, and BadRequest if a name is there twice."""
        check_distinct(names, field)
        try:
            return list(map(self.names.__getitem__, names))
        except KeyError:
            return [self.find(name, field) for name in names]

    def check_room(self, num_new: int) -> None:
        """Raises what says so if `num_new` more can never be had: by the run's limit, or by the pool's size."""
        limit = min(self._max_held, self._pool.num_total)
        if self.num_held + num_new > limit:
            is_own = limit == self._max_held
            owner = "of the run" if is_own else "of the whole pool"
            free = f"free {self._kind.noun}s"
            raise self._kind.over_limit(
                f"the run holds {self.num_held} {self._kind.noun}s and asks for {num_new} more; the limit {owner} is "
                f"{limit}",
                hint=raise_hint(f"max_{self._kind.noun}s", limit, free) if is_own else free,
            )

    def check_bindable(self, names: Sequence[NameT], field: str) -> None:
        """Raises BadRequest if a name is bound or there twice, and as `check_room`."""
        self._check_unbound(names, field)
        self.check_room(len(names))

    def bind_new(self, names: Sequence[NameT], field: str) -> list[Resource[IdT]]:
        """Binds each name to a new resource that has no unit yet. Raises as `check_bindable`."""
        self.check_bindable(names, field)
        fresh: list[Resource[IdT]] = [Resource() for _ in names]
        self._bind(names, fresh)
        self.num_held += len(fresh)
        return fresh

    def can_back(self, num_units: int) -> bool:
        """Whether the pool has so many units now."""
        return num_units <= self._pool.num_free

    def back(self, resources: Iterable[Resource[IdT]]) -> None:
        """Gives a unit to each that has none. The caller has asked `can_back`."""
        if self.num_held == self.num_backed:
            return
        num_backed = 0
        for resource in resources:
            if resource.id is None:
                resource.id = self._pool.take()
                num_backed += 1
        self._count_backed(num_backed)
        self.num_moved += num_backed

    def num_unbacked(self, resources: Iterable[Resource[IdT]]) -> int:
        """How many have no unit: mostly none of the whole table."""
        return 0 if self.num_held == self.num_backed else sum(resource.id is None for resource in resources)

    def back_with(self, resources: Iterable[Resource[IdT]], units: Iterable[IdT]) -> None:
        """Gives each, which has none, a unit that the caller has taken for it."""
        for resource, unit in zip(resources, units, strict=True):
            assert resource.id is None
            resource.id = unit
            self._count_backed(1)
            self.num_moved += 1

    def unback(self, resources: Iterable[Resource[IdT]]) -> None:
        """Takes the units of resources that live on."""
        self._give_back(resources)

    def replace(self, resource: Resource[IdT]) -> tuple[IdT, IdT]:
        """Gives the resource a fresh unit for its old one; returns both, the old one first. As `back`."""
        old, fresh = resource.id, self._pool.take()
        assert old is not None
        self._give_back([resource])
        self.back_with([resource], [fresh])
        return old, fresh

    def bind_backed(self, names: Sequence[NameT], field: str) -> list[Resource[IdT]]:
        """As `bind_new`, each with its unit. Raises also what says that the pool has too few now."""
        self.check_bindable(names, field)
        if not self.can_back(len(names)):
            raise self._none_free(len(names))
        fresh = self.bind_new(names, field)
        self.back(fresh)
        return fresh

    def grow(self, name: NameT) -> Resource[IdT] | None:
        """As `bind_backed` of one name, for a call that holds it; None if it cannot be now, whatever the reason.
        Segments do this every page, so it is one step."""
        names = self.names
        if name in names or self.num_held >= self._max_held or len(names) >= self._max_names or not self._pool.num_free:
            return None
        resource: Resource[IdT] = Resource()
        names[name] = resource
        resource.num_names = resource.num_holds = 1
        resource.id = self._pool.take()
        self.num_held += 1
        self._count_backed(1)
        return resource

    def take_unit_seconds(self) -> float:
        """Units held times seconds, since this was asked last."""
        self._count_backed(0)
        taken, self._unit_seconds = self._unit_seconds, 0.0
        return taken

    def share(self, sources: Sequence[NameT], targets: Sequence[NameT]) -> None:
        """Binds each target to what the source of the same place is bound to. Raises BadRequest, NotFound."""
        if len(sources) != len(targets):
            raise BadRequest(f"targets: {len(targets)} names for {len(sources)} sources", field="targets")
        found = [self.find(name, "sources") for name in sources]
        self._check_unbound(targets, "targets")
        self._bind(targets, found)

    def unbind(self, names: Sequence[NameT], field: str) -> None:
        """Unbinds the names; what nothing holds any more is free. Raises NotFound, and BadRequest for a name twice."""
        unused = []
        for resource in self.find_all(names, field):
            resource.num_names -= 1
            if not (resource.num_names or resource.num_holds):
                unused.append(resource)
        self._release_unused(unused)
        for name in names:
            del self.names[name]
        self.num_unbound += len(names)

    def keep(self, resources: list[Resource[IdT]]) -> None:
        """As `hold`, for many: none of them is touched, so it takes no time."""
        self._kept.append(resources)

    def end_keep(self, resources: list[Resource[IdT]]) -> None:
        """Ends what `keep` began with the very same list."""
        del self._kept[next(place for place, kept in enumerate(self._kept) if kept is resources)]
        orphans, self._orphans = self._orphans, set()
        self._release_unused([one for one in orphans if not (one.num_names or one.num_holds)])

    def hold(self, resources: Iterable[Resource[IdT]]) -> None:
        """Keeps the resources alive for a call."""
        for resource in resources:
            resource.num_holds += 1

    def drop(self, resources: Iterable[Resource[IdT]]) -> None:
        """Ends what `hold` began."""
        unused = []
        for resource in resources:
            resource.num_holds -= 1
            if not (resource.num_holds or resource.num_names):  # mostly a name is left
                unused.append(resource)
        self._release_unused(unused)

    def _count_backed(self, change: int) -> None:
        now_s = self._moment.now_s
        self._unit_seconds += self.num_backed * (now_s - self._counted_s)
        self._counted_s = now_s
        self.num_backed += change

    def check_kept(self, kept: Sequence[list[Resource[IdT]]]) -> None:
        """Asserts that these are what `keep` keeps, and that nothing else is without a name or a call."""
        assert sorted(map(id, kept)) == sorted(map(id, self._kept)), "what is kept does not add up"
        assert all(any(one in resources for resources in kept) for one in self._orphans), "an orphan nobody keeps"
        assert not any(one.num_names or one.num_holds for one in self._orphans), "an orphan has a name"

    def _bind(self, names: Sequence[NameT], resources: Sequence[Resource[IdT]]) -> None:
        for name, resource in zip(names, resources, strict=True):
            self.names[name] = resource
            resource.num_names += 1

    def _check_unbound(self, names: Sequence[NameT], field: str) -> None:
        check_distinct(names, field)
        for name in names:
            if name in self.names:
                raise BadRequest(
                    f"{field}: {self._kind.noun} {name} is already bound",
                    field=field,
                    hint="free it, or take another name",
                )
        if len(self.names) + len(names) > self._max_names:
            raise self._kind.over_limit(
                f"the run has {len(self.names)} names of {self._kind.noun}s and asks for {len(names)} more; the limit "
                f"is {self._max_names}, which is {MAX_NAMES_PER_UNIT} for each {self._kind.noun} that it may hold",
                hint=raise_hint(f"max_{self._kind.noun}s", self._max_held, "free names"),
            )

    def _release_unused(self, resources: Iterable[Resource[IdT]]) -> None:
        """Resources without names, which no call holds, live no longer, unless they are kept."""
        backed = []
        for resource in resources:
            if self._kept and any(resource in kept for kept in self._kept):
                self._orphans.add(resource)
                continue
            self.num_held -= 1
            if resource.id is not None:
                backed.append(resource)
        self._give_back(backed)

    def _give_back(self, resources: Iterable[Resource[IdT]]) -> None:
        num_given = 0
        for resource in resources:
            assert resource.id is not None
            self._pool.give(resource.id)
            resource.id = None
            num_given += 1
            if resource.lent is not None:
                resource.lent.num_holders -= 1
                resource.lent = None
        self._count_backed(-num_given)
        self.num_moved += num_given

    def _none_free(self, num_asked: int) -> LoopwrightError:
        return self._kind.none_free(
            f"{num_asked} {self._kind.noun}s asked for; {self._pool.num_free} of the pool's {self._pool.num_total} are "
            f"free now, and the run holds {self.num_held}",
            hint="try again when others have finished",
        )


def check_distinct(names: Sequence[int], field: str) -> None:
    """Raises BadRequest if a name is there twice."""
    if len(set(names)) == len(names):
        return
    seen: set[int] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"{field}: {name} is there twice", field=field)
        seen.add(name)
