"""The laws of the queue: nothing is handed out twice, groups are whole, and everybody gets a turn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit.runtime.placement import Allocation, Demand, Hold, Ledger, is_in_reach, serve

TOTALS = {"CPU": 4, "GPU": 3, "disk": 2}

bundles = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([0.5, 1, 2, 4]),
        "GPU": st.sampled_from([0.25, 0.5, 1, 2]),
        "disk": st.sampled_from([0.5, 1, 2]),
    },
)

CRUMBS = [{"CPU": 0.5}, {"GPU": 0.25}, {"disk": 0.5}]


def feasible(wanted: list[dict[str, float]]) -> bool:
    return Ledger.of_machine(TOTALS).take_all(wanted) is not None


gangs = st.lists(bundles, min_size=1, max_size=4).filter(feasible)
asked = st.lists(st.tuples(gangs, st.booleans()), max_size=12)


class Session:
    """A queue and a ledger, as the node has them. Its clock is set by hand."""

    def __init__(self) -> None:
        self.ledger = Ledger.of_machine(TOTALS)
        self.queue: list[Demand] = []
        self.held: dict[int, list[Allocation]] = {}
        self.since: dict[int, float] = {}
        self.lasts_s: dict[int, float | None] = {}
        self.actors: set[int] = set()
        self.now = 0.0
        self._next = 0

    def ask(
        self,
        wanted: list[dict[str, float]],
        nested: bool = False,
        *,
        lasts_s: float | None = None,
        actor: bool = False,
    ) -> int:
        """Queue a request of a task, or of an actor or a group; `lasts_s` is None if it never ends."""
        self._next += 1
        self.queue.append(Demand(self._next, wanted, nested=nested, since=self.now))
        self.lasts_s[self._next] = lasts_s
        if actor:
            self.actors.add(self._next)
        return self._next

    def serve(self) -> None:
        granted = serve(self.queue, self.ledger, self._grant, self._in_reach)
        self.queue = [waiting for waiting in self.queue if waiting not in granted]
        self.check()

    def _in_reach(self, waiting: Demand) -> bool:
        holds = [
            Hold(allocation=allocation, since=self.since[key], is_task=key not in self.actors)
            for key, allocations in self.held.items()
            for allocation in allocations
        ]
        return is_in_reach(waiting, [(self.ledger, holds)], self.now)

    def advance(self, seconds: float) -> None:
        """Let time pass, end what ends, and serve."""
        self.now += seconds
        for key in [key for key in self.held if (self.lasts_s[key] or 1e9) <= self.now - self.since[key]]:
            self.release(key)
        self.serve()

    def _grant(self, waiting: Demand) -> list[str] | None:
        held = self.ledger.take_all(waiting.bundles)
        if held is None:
            return self.ledger.lacking_for_all(waiting.bundles)
        self.held[waiting.key] = held
        self.since[waiting.key] = self.now
        return None

    def release(self, key: int) -> None:
        for allocation in self.held.pop(key):
            self.ledger.give_back(allocation)

    def check(self) -> None:
        """What is free and what is held is what there is, each GPU by itself."""
        held = [allocation for allocations in self.held.values() for allocation in allocations]
        assert all(amount >= 0 for amount in self.ledger.free.values())
        for name in ("CPU", "disk"):
            taken = sum(allocation.amounts.get(name, 0) for allocation in held)
            assert taken + self.ledger.free[name] == TOTALS[name] * 10_000
        for index in range(TOTALS["GPU"]):
            taken = sum(allocation.gpus.get(index, 0) for allocation in held)
            assert taken + self.ledger.free_gpus[index] == 10_000
            assert self.ledger.free_gpus[index] >= 0


@settings(deadline=None)
@given(asked, st.data())
def test_nothing_is_handed_out_twice_and_nothing_is_lost(
    wanted: list[tuple[list[dict[str, float]], bool]], data: st.DataObject
) -> None:
    session = Session()
    for gang, nested in wanted:
        session.ask(gang, nested)
        session.serve()
        if session.held and data.draw(st.booleans()):
            session.release(data.draw(st.sampled_from(sorted(session.held))))
            session.serve()
    while session.held:
        session.release(next(iter(session.held)))
        session.serve()
    assert not session.queue, "whatever fits an empty machine is granted in the end"
    assert session.ledger.amounts() == TOTALS


@settings(deadline=None)
@given(gangs, st.lists(gangs, max_size=6), st.data())
def test_a_gang_gets_its_turn_however_many_requests_come_after_it(
    gang: list[dict[str, float]], earlier: list[list[dict[str, float]]], data: st.DataObject
) -> None:
    session = Session()
    for other in earlier:
        session.ask(other)
    key = session.ask(gang)
    session.serve()
    holders: set[int] | None = None
    while key not in session.held:
        if holders is None and session.queue[0].key == key:
            holders = set(session.held)
        # Once it is first, it waits for those who held something then; those who come after never let go.
        ending = sorted(session.held if holders is None else holders & session.held.keys())
        assert ending, "somebody has passed it"
        session.release(data.draw(st.sampled_from(ending)))
        crumbs = data.draw(st.sampled_from(CRUMBS))
        for _ in range(12):  # enough to take all that there is of one kind
            session.ask([crumbs])
        session.serve()


durations = st.sampled_from([None, 1, 20, 100, 1000])
steps = st.lists(
    st.tuples(gangs, st.booleans(), durations, st.booleans(), st.sampled_from([0, 1, 30, 300])), max_size=12
)


@settings(deadline=None)
@given(steps)
def test_nothing_that_fits_waits_for_ever_behind_what_can_t_go(
    steps: list[tuple[list[dict[str, float]], bool, float | None, bool, float]],
) -> None:
    session = Session()
    for gang, nested, lasts_s, actor, pause_s in steps:
        session.ask(gang, nested, lasts_s=lasts_s, actor=actor)
        session.advance(pause_s)
    while session.now < 200_000:
        session.advance(max(5, session.now / 20))
    for waiting in session.queue:
        assert session.ledger.lacking_for_all(waiting.bundles), "it fits, and waits"


@settings(deadline=None)
@given(gangs, st.sampled_from([1, 7, 90, 400]), st.booleans(), st.lists(st.sampled_from(CRUMBS), min_size=1))
def test_a_gang_does_not_starve_in_a_stream_of_whatever_ends(
    gang: list[dict[str, float]], lasts_s: float, actor: bool, crumbs: list[dict[str, float]]
) -> None:
    session = Session()

    def stream() -> None:
        for crumb in crumbs:
            while sum(waiting.bundles == [crumb] for waiting in session.queue) < 3:
                session.ask([crumb], lasts_s=lasts_s, actor=actor)

    stream()
    session.advance(lasts_s / 2)
    key = session.ask(gang)
    while key not in session.held and session.now < 60 + 5 * lasts_s:
        stream()
        session.advance(lasts_s / 10)
    assert key in session.held


def test_an_actor_s_hold_holds_up_nobody() -> None:
    session = Session()
    session.ask([{"CPU": 1}], actor=True)
    session.advance(0.1)
    large = session.ask([{"CPU": 4}])
    small = session.ask([{"CPU": 1}])
    session.advance(0.1)
    assert small in session.held
    assert large not in session.held


def test_the_end_of_a_late_actor_is_awaited_for_minutes_at_most() -> None:
    ledger = Ledger.of_machine(TOTALS)
    (held,) = ledger.take_all([{"CPU": 1}]) or ()
    large = Demand(1, [{"CPU": 4}], since=0.0)

    def is_awaited(now: float, is_task: bool) -> bool:
        return is_in_reach(large, [(ledger, [Hold(allocation=held, since=36_000, is_task=is_task)])], now)

    assert [is_awaited(36_000 + age, is_task=False) for age in (1, 500, 700, 10_000)] == [
        True,
        True,
        False,
        False,
    ]
    assert is_awaited(46_000, is_task=True)


def test_cpus_and_gpus_that_are_never_free_at_once_are_gathered() -> None:
    session = Session()
    gpus = session.ask([{"GPU": 1}] * 3)
    session.serve()
    gang = session.ask([{"CPU": 4, "GPU": 3}])
    cpus = session.ask([{"CPU": 4}])
    session.serve()
    assert session.held.keys() == {gpus}, "the CPUs are kept for the one that is first"
    disk = session.ask([{"disk": 1}])
    session.serve()
    assert disk in session.held, "what it does not need is free for all"
    session.release(gpus)
    session.serve()
    assert gang in session.held
    session.release(gang)
    session.serve()
    assert cpus in session.held


def test_between_workers_nothing_is_kept_back() -> None:
    session = Session()
    holder = session.ask([{"GPU": 3}])
    session.serve()
    session.ask([{"CPU": 4, "GPU": 3}], nested=True)
    # The holder may be waiting for this one.
    child = session.ask([{"CPU": 1}], nested=True)
    session.serve()
    assert session.held.keys() == {holder, child}


def test_in_a_group_nobody_is_passed_over_for_ever_either() -> None:
    free = {0: Ledger({"CPU": 10_000}, {}), 1: Ledger({"CPU": 20_000}, {})}
    in_reach = True

    def grant(waiting: Demand) -> list[str] | None:
        for index, ledger in free.items():
            if waiting.bundle in (None, index) and ledger.take_all(waiting.bundles) is not None:
                return None
        return ["CPU"]

    def granted(*queue: Demand) -> list[int]:
        return [waiting.key for waiting in serve(queue, Ledger({}, {}), grant, lambda _: in_reach)]

    assert granted(Demand(1, [{"CPU": 1}], group=7, bundle=1)) == [1]
    large = Demand(2, [{"CPU": 2}], group=7, bundle=1)
    small = Demand(3, [{"CPU": 1}], group=7, bundle=1)
    elsewhere = Demand(4, [{"CPU": 1}], group=7, bundle=0)
    nothing = Demand(5, [{}], group=7, bundle=1)
    assert granted(large, small, elsewhere, nothing) == [4, 5]
    workers = Demand(6, [{"CPU": 1}], group=7, bundle=1, nested=True)
    assert granted(large, small, workers) == [6], "somebody may be waiting for it who holds the rest"
    free[1].give_back(Allocation({"CPU": 10_000}))
    assert granted(large, small) == [], "tasks hold the rest"
    in_reach = False
    assert granted(large, small) == [3], "nobody knows when the rest will be free"
