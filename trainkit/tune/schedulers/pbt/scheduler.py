"""Population based training: the worst members take over the best members' weights and mutate the values.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846,
Algorithm 1; truncation selection and perturbation as in its section 4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import ConfigError, TuneArgumentError
from trainkit.tune.core.checks import is_finite, is_number, require_number, require_one_of
from trainkit.tune.core.metrics import lookup, without_objects
from trainkit.tune.schedulers.base import (
    CONTINUE,
    NO_CONFIG,
    Decision,
    Donor,
    Facts,
    TrialScheduler,
    Verdict,
    number_words,
    words_of,
)
from trainkit.tune.schedulers.pbt.explore import (
    Operations,
    changes,
    completed,
    customised,
    explored,
)
from trainkit.tune.schedulers.pbt.population import Barrier, Member, Population, Quantiles, quantiles
from trainkit.tune.schedulers.pbt.replay import PopulationBasedTrainingReplay
from trainkit.tune.space.domains import Categorical, Domain, Forbid, GridSearch, SampleFrom, When
from trainkit.tune.space.search_space import Space, fitted
from trainkit.tune.space.tree import holds_leaf

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]

MOST_TRIES = 100
"""Largest number of attempts to find an explored configuration that the rules of the search space allow."""


class PopulationBasedTraining(TrialScheduler):
    """Population based training: at intervals, bad trials take over the state of a better trial and explore.

    All trials form the population. A member is judged at multiples of `perturbation_interval`; a report that
    jumps over several multiples counts once. A judged member in the lower quantile exploits: it takes over
    the latest checkpoint of a strictly better member of the upper quantile. Possible donors are tried in
    random order until a donor has a checkpoint. The judged member continues with an explored copy of the
    donor's configuration. With probability `resample_probability`, a mutated value is drawn again. If the
    value is not drawn again, a number is multiplied by one of `perturbation_factors`, a value of a list moves
    to its left or right neighbour, and a `tune.choice` stays. Values keep the range and the type of their
    domain. A whole number changes by at least one.

    Members that have ended leave the population. A member whose score is NaN is never a donor, and exploits
    as soon as another member has a score. If not all members can run at once, they take turns: at each
    interval, the least trained members run first.

    Args:
        time_attr: name of the reported value that counts the resource spent; the value must not decrease.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
        perturbation_interval: time between judgements, in units of `time_attr`.
        burn_in_period: no member is judged before this time; the first judgement is at the next multiple of
            the interval.
        hyperparam_mutations: mutation by name: a domain, a list of ordered values, a function that draws a
            value, or a nested dictionary of mutations. A mutation also draws the initial value of a name that
            `param_space` lacks.
        quantile_fraction: fraction of the population that takes over a state, and fraction that donates its
            state; 0 to 0.5. With the fraction 0, no trial takes over the state of another trial.
        resample_probability: probability that a mutated value is drawn again.
        perturbation_factors: factors for numbers; a perturbed number is multiplied by a factor drawn from
            this list.
        custom_explore_fn: function that receives each explored configuration and returns the configuration to
            use.
        log_config: True writes pbt_global.txt and pbt_policy_<trial id>.txt into the experiment's folder.
        require_attrs: True: a report without `time_attr` or the metric ends the experiment with an error.
        synch: True: at each interval, members wait until all members have arrived, and are then judged
            together.
        tie: "arrival": the earlier of two equal scores ranks higher, and members with equal scores don't
            exploit each other. "random": equal scores rank in random order, and a member may exploit a member
            with an equal score.

    Raises:
        ConfigError: a value is out of range, or a mutation is invalid.
    """

    label: ClassVar[str] = "PBT"
    hears_again: ClassVar[bool] = True

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        *,
        tie: str = "arrival",
    ) -> None:
        super().__init__(time_attr, metric, mode)
        require_number("perturbation_interval", perturbation_interval, "a number above 0", above=0)
        require_number("burn_in_period", burn_in_period, "a number of 0 or more", least=0)
        words = "a number from 0 to {}"
        require_number("quantile_fraction", quantile_fraction, words.format(0.5), least=0, most=0.5)
        require_number("resample_probability", resample_probability, words.format(1), least=0, most=1)
        factors = tuple(perturbation_factors) if isinstance(perturbation_factors, (list, tuple)) else ()
        if not factors or not all(is_finite(factor) and factor > 0 for factor in factors):
            raise TuneArgumentError(
                f"perturbation_factors must be above 0, such as (1.2, 0.8), not {perturbation_factors!r}"
            )
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise TuneArgumentError(f"custom_explore_fn must be a function, not {custom_explore_fn!r}")
        require_one_of("tie", tie, ("arrival", "random"))
        self.hyperparam_mutations = checked_mutations(hyperparam_mutations)
        if not self.hyperparam_mutations and custom_explore_fn is None:
            raise TuneArgumentError(
                f"{type(self).__name__} has nothing to explore: give "
                "hyperparam_mutations={'lr': tune.loguniform(1e-4, 1e-1)}, or a custom_explore_fn"
            )
        self.perturbation_interval = perturbation_interval
        self.burn_in_period = burn_in_period
        self.quantile_fraction = quantile_fraction
        self.resample_probability = resample_probability
        self.perturbation_factors = factors
        self.custom_explore_fn = custom_explore_fn
        self.log_config = log_config
        self.require_attrs = require_attrs
        self.synch, self.tie = synch, tie
        self._members = Population(perturbation_interval, burn_in_period)
        self._space: Space | None = None
        self._no_more = False
        self._barrier = Barrier(self._members)  # only synch=True uses the barrier and its verdicts
        self._verdicts: dict[str, Decision] = {}

    @property
    def first_judgement(self) -> float:
        return self._members.first * self.perturbation_interval

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        return completed(space, self.hyperparam_mutations)

    def take_space(self, space: Space) -> None:
        self._space = space

    def resize(self, total_samples: int | None) -> None:
        super().resize(total_samples)
        self._no_more = False  # If no further trials follow, `on_no_more_trials` is called again.
        self._open_barrier_if_all_came()

    def on_begin(self) -> None:
        # After a restore, fewer members may run at once, so each member counts as paused until its next
        # report.
        for member in self._members.active():
            if member.paused is None:
                self._members.pause(member)

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self._members.by_id[trial_id] = Member(trial_id, copy.deepcopy(dict(config)))

    # --- reports ----------------------------------------------------------------------------------

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        if self.require_attrs:
            for role, name in (("time_attr", self.time_attr), ("metric", self.metric or "")):
                if not is_number(lookup(result, name)):
                    raise TuneArgumentError(
                        f"trial {trial_id} reported {', '.join(sorted(result))} without a number for {role}="
                        f"{name!r}: report it each time, or set require_attrs=False to ignore such reports"
                    )
        return super().on_result(trial_id, result)

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        member = self._members[trial_id]
        # A member that reports is running, even if it failed while paused and was never resumed.
        member.paused = None
        self._verdicts.pop(trial_id, None)
        if time is None or score is None or not math.isfinite(time) or not member.active:
            return CONTINUE
        intervals = self._members.advance(member, time)
        if self.synch:
            return self._at_barrier(member, intervals, score)
        if intervals <= member.intervals or intervals < self._members.first:
            return CONTINUE
        self.judge(member, intervals, score)
        return self._judged(member, self._quantiles())

    def judge(self, member: Member, intervals: int, score: float) -> None:
        """Record a member's score after `intervals` intervals."""
        self._members.judge(member, intervals, score)

    def _judged(self, member: Member, ranked: Quantiles) -> Decision:
        decision = self._exploit(member, ranked)
        if decision is None:
            reason = self._facts(member, ranked, "population")
            verdict = Verdict.CONTINUE
            if self._must_share(member):
                verdict, reason["turn"] = Verdict.PAUSE, "others"
            decision = Decision(verdict, reason, save=member.trial_id in ranked.upper)
        if decision.verdict is Verdict.PAUSE:
            self._members.pause(member)
        return decision

    def _must_share(self, member: Member) -> bool:
        """Return True if the member must pause in favour of new trials or of less trained, paused members."""
        return self._more_to_come or any(
            other.paused is not None and other.time <= member.time for other in self._members.active()
        )

    @property
    def _more_to_come(self) -> bool:
        """True if further trials will be suggested; False if the number of trials is unlimited."""
        return (
            self.total_samples is not None and not self._no_more and len(self._members) < self.total_samples
        )

    # --- exploit and explore ----------------------------------------------------------------------

    def _quantiles(self) -> Quantiles:
        shuffle = self._generator.permutation if self.tie == "random" else None
        return quantiles(self._members.scores(shuffle), self.quantile_fraction)

    @property
    def _generator(self) -> Generator:
        if self.rng is None:
            raise TuneArgumentError(
                f"{type(self).__name__} needs a random generator: call set_search_properties first"
            )
        return self.rng

    def _exploit(self, member: Member, ranked: Quantiles) -> Decision | None:
        """Return the decision on a member of the lower quantile; None if no donor exists."""
        if member.trial_id not in ranked.lower:
            return None
        upper = [self._members[trial_id] for trial_id in ranked.upper]
        donors = [other for other in upper if self._may_donate(other, member)]
        if not donors:
            return None
        donors = [donors[place] for place in self._generator.permutation(len(donors))]
        offers = [self.explore(donor.trial_id, member.trial_id) for donor in donors]
        member.offered = {donor.trial_id: donor.mark for donor in donors}
        (config, operations), first = offers[0], donors[0]
        reason = self._facts(member, ranked, "exploit") | {
            "donor": first.trial_id,
            "donor_score": self._signed(first.score),
            "changes": without_objects(changes(first.config, config, self.hyperparam_mutations, operations)),
        }
        if donors[1:]:
            reason["other_donors"] = [donor.trial_id for donor in donors[1:]]
        offered = (Donor(donor.trial_id, offer) for donor, (offer, _) in zip(donors, offers, strict=True))
        return Decision(Verdict.PAUSE, reason, donors=tuple(offered))

    def _may_donate(self, donor: Member, member: Member) -> bool:
        if donor is member or donor.inherited or donor.score is None or member.score is None:
            return False
        return donor.score > member.score or (self.tie == "random" and donor.score == member.score)

    def explore(self, donor: str, receiver: str) -> tuple[dict[str, Any], Operations]:
        """Return the donor's configuration, changed for the receiver, and the operation on each value.

        If the rules of the search space forbid the explored configuration, it is explored again, up to
        `MOST_TRIES` times in all. If all attempts fail, the donor's configuration is returned unchanged.

        Raises:
            ConfigError: `custom_explore_fn` returns no configuration, or a value outside its declared domain.
        """
        before = self._members[donor].config
        for _ in range(MOST_TRIES):
            config, operations = self.changed(self._members[donor], receiver)
            if self._space is not None:
                config = fitted(config, self._space, self._generator)
            if self.custom_explore_fn is not None:
                config = customised(config, operations, self.hyperparam_mutations, self.custom_explore_fn)
            if self._space is None or self._space.forbidden_by(config) is None:
                return config, operations
        return copy.deepcopy(dict(before)), dict.fromkeys(operations, "keep")

    def changed(self, donor: Member, receiver: str) -> tuple[dict[str, Any], Operations]:
        """Return an explored configuration, to which `custom_explore_fn` and the rules of the space are not
        yet applied.
        """
        return explored(
            donor.config,
            self.hyperparam_mutations,
            self._generator,
            self.resample_probability,
            self.perturbation_factors,
        )

    def _facts(self, member: Member, ranked: Quantiles, rule: str) -> dict[str, Any]:
        return {
            "rule": rule,
            "rank": ranked.rank(member.trial_id),
            "members": len(ranked.ranked),
            "score": self._signed(member.score),
        }

    def _signed(self, score: float | None) -> float | None:
        """Return a score with the sign of the reported metric; None if the score is missing or not finite."""
        if score is None or score == -math.inf:
            return None
        return -score if self.mode == "min" else score

    # --- synchronous ------------------------------------------------------------------------------

    def _at_barrier(self, member: Member, intervals: int, score: float) -> Decision:
        if intervals < self._barrier.target:
            return CONTINUE
        # A member that failed while it waited at the barrier runs again and arrives twice, but counts once.
        if member.trial_id not in self._barrier:
            self.judge(member, intervals, score)
            self._barrier.arrive(member)
        self._members.pause(member)
        reason = {
            "rule": "barrier",
            "at": self._barrier.target * self.perturbation_interval,
            "arrived": len(self._barrier),
            "members": sum(1 for _ in self._members.active()),
        }
        best = self._open_barrier_if_all_came()
        # The last member to arrive may be among the best, so it saves and can be a donor even if it resumes
        # at once.
        return Decision(Verdict.PAUSE, reason, save=member.trial_id in best)

    def _open_barrier_if_all_came(self) -> Sequence[str]:
        """Judge the waiting members if all have arrived, and return the upper quantile; otherwise return
        ().
        """
        if self._more_to_come or not self._barrier.all_came:
            return ()
        ranked = self._quantiles()
        for member in self._barrier.open():
            if (decision := self._exploit(member, ranked)) is not None:
                self._verdicts[member.trial_id] = decision
        return ranked.upper

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        waiting, self._verdicts = list(self._verdicts.items()), {}
        return waiting

    # --- turns and ends ---------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        return self.synch or self.quantile_fraction > 0

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        if pending:
            return pending[0]
        # If new trials came first, an unlimited number of new trials would keep paused members from ever
        # resuming.
        if new and self.total_samples is not None:
            return None
        free = [self._members[trial_id] for trial_id in paused if trial_id not in self._barrier]
        first = min(free, key=lambda member: (member.time, member.paused or 0), default=None)
        return None if first is None else first.trial_id

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        member = self._members[trial_id]
        member.paused = None
        self._verdicts.pop(trial_id, None)
        return {"rule": "turn", "time": member.time}

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        member = self._members[trial_id]
        member.config = copy.deepcopy(dict(config))
        if donor is not None:
            member.inherited = True
            member.change = member.offered.get(donor, self._members[donor].mark)
        self._verdicts.pop(trial_id, None)

    def on_trial_complete(self, trial_id: str) -> None:
        self._members[trial_id].active = False
        self._barrier.leave(self._members[trial_id])
        self._verdicts.pop(trial_id, None)
        self._open_barrier_if_all_came()

    def on_trial_error(self, trial_id: str) -> None:
        self.on_trial_complete(trial_id)

    def on_trial_again(self, trial_id: str) -> None:
        member = self._members[trial_id]
        member.active = True
        self._barrier.take_back(member)

    def on_no_more_trials(self) -> None:
        self._no_more = True
        self._open_barrier_if_all_came()


# --- wording of decisions ----------------------------------------------------------------------------


words_of("barrier")("waits at {at:g} for all members, {arrived} of {members} have arrived".format_map)
words_of("turn")("continues from {time:g}".format_map)


@words_of("population")
def _population_words(reason: Facts) -> str:
    return f"rank {reason['rank']} of {reason['members']} with {number_words(reason['score'])}"


@words_of("exploit")
def _exploit_words(reason: Facts) -> str:
    donor, score = reason["donor"], number_words(reason["donor_score"])
    found = f"{_population_words(reason)}, copies trial {donor} with {score}"
    steps = [
        f"{name} {number_words(change['old'])} -> {number_words(change['new'])}"
        for name, change in reason.get("changes", {}).items()
        if change["old"] != change["new"]
    ]
    return found + (f"; {', '.join(steps)}" if steps else "")


def checked_mutations(
    mutations: Mapping[str, Any] | None, name: str = "hyperparam_mutations"
) -> dict[str, Any]:
    """Return a copy of `mutations` with tuples turned into lists.

    Raises:
        ConfigError: a mutation is empty or of an unsupported kind; the message names its key.
    """
    if mutations is None:
        return {}
    if not isinstance(mutations, Mapping):
        raise ConfigError(
            f"{name} must be a dictionary such as {{'lr': tune.loguniform(1e-4, 1)}}, not {mutations!r}"
        )
    return {key: _checked(value, f"{name}[{key!r}]") for key, value in mutations.items()}


def _checked(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"{name} is empty: name the values to mutate, or leave {name} out")
        if set(value) == {"grid_search"}:
            raise ConfigError(f"{name} is a grid, which is not a supported mutation: give a list of values")
        return checked_mutations(value, name)
    options = value.categories if isinstance(value, Categorical) else value
    if isinstance(options, (list, tuple)) and any(map(holds_leaf, options)):
        raise ConfigError(
            f"{name} has options with domains: give plain values, and the domains as separate mutations"
        )
    if isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value)):
        raise ConfigError(
            f"{name}={value!r} is ambiguous: give tune.uniform{value!r}, or a list {list(value)!r} of choices"
        )
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} is empty: give at least one value")
        return list(value)
    if isinstance(value, (GridSearch, SampleFrom, When, Forbid)):
        raise ConfigError(
            f"{name} is {value}, which is not supported as a mutation: give a domain such as "
            "tune.uniform(0, 1), a list of values in order, or a function that returns a value"
        )
    if isinstance(value, Domain) or callable(value):
        return value
    raise ConfigError(
        f"{name} must be a domain such as tune.uniform(0, 1), a list of values in order, a function that "
        f"returns a value, or a dictionary of these, not {value!r}"
    )
