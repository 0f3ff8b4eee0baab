"""Comparison of a resumed training with an undisturbed training, as pure functions of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from trainkit.plugins.check_resume.records import Ranks, Step

ADVICE = {
    "weights": "save and load model.state_dict() of every model, as it is after the checkpoint's last step",
    "optimizer": "save every optimizer.state_dict(), and load it after moving the model to its device",
    "settings": "add scheduler.state_dict() to the checkpoint, or compute the value from the saved step",
    "state": "save model.state_dict() with its buffers, and averages (EMA) and copies of the weights",
    "accumulation": "write checkpoints after an optimizer step only, or save the gradients as well",
    "shuffled": "save the state of the generator that shuffles",
    "epoch begun again": "save the number of batches that the epoch has used, and skip this number",
    "batch repeated": "save the number of used batches after the optimizer's step, and skip this number",
    "batch left out": "save the number of batches that steps have used, not the number of loaded batches",
    "order of an epoch": "shuffle by the saved epoch, as sampler.set_epoch(epoch) does, or save generators",
    "samples": "save the states of generators and samplers, or seed each epoch's order and augmentation",
    "generator": "save the states of all generators, such as torch.get_rng_state(), of every rank",
    "loss": "save what the loss depends on, such as counts, or call torch.use_deterministic_algorithms(True)",
    "shares": "divide each global batch of one common order among the ranks, and save their number",
    "scale": "keep the global batch, and average the gradients over it",
    "failed": "mend this error, which a run from the start does not have",
    "ended": "compute the remaining epochs and steps from the epoch and step in the checkpoint",
    "began again": "write a checkpoint into the working folder or {run} in these steps; load it at the start",
    "not reproducible": "seed torch, numpy and random, and keep all files in the working folder or {run}",
}
"""Advice on how to change the script, by the kind of a difference."""


@dataclass(frozen=True)
class Finding:
    """A difference between a run and the undisturbed run.

    Attributes:
        kind: kind of the difference, a key of `ADVICE`.
        step: number of the optimizer step, from 1.
        rank: rank that differs first.
        what: description of the difference.
    """

    kind: str
    step: int
    rank: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}: {ADVICE[self.kind]}"


@dataclass(frozen=True)
class Place:
    """A step to compare, with the undisturbed steps of the same rank.

    Attributes:
        steps: the undisturbed steps.
        index: index of the step in `steps`.
        first: index of the first step after the resume.
        of_all: True for the step of all ranks together.
    """

    steps: Sequence[Step]
    index: int
    first: int
    of_all: bool = False

    @property
    def expected(self) -> Step:
        """The undisturbed step."""
        return self.steps[self.index]

    @property
    def name(self) -> str:
        """The step's number, and the rank if several exist."""
        has_rank = self.expected.world_size > 1 and not self.of_all
        return f"step {self.index + 1}" + (f" on rank {self.expected.rank}" if has_rank else "")

    def finding(self, kind: str, what: str) -> Finding:
        """Return a difference at this step."""
        return Finding(kind, self.index + 1, self.expected.rank, what)


def align(undisturbed: Sequence[Step], resumed: Step) -> int:
    """Return the index of the undisturbed step that `resumed`, the first step after a resume, repeats.

    The function chooses the step whose weights fit. With a learning rate of 0, for example, the weights of
    several steps fit equally well. Among such steps, the function chooses the step that is equal in most
    other respects, and the last of several such steps.
    """

    def likeness(index: int) -> tuple[bool, int, int, int]:
        step = undisturbed[index]
        equal = sum(ours == theirs for ours, theirs in zip(step.weights, resumed.weights, strict=False))
        fields = ("state", "options", "batches", "losses")
        others = sum(getattr(step, name) == getattr(resumed, name) for name in fields)
        return step.optimizer == resumed.optimizer, equal, others, index

    return max(range(len(undisturbed)), key=likeness)


def compare(undisturbed: Ranks, resumed: Ranks, first: int) -> list[Finding]:
    """Return all differences at the first step that differs, causes before effects.

    Args:
        undisturbed: steps of the undisturbed run.
        resumed: steps of a run on the same number of ranks.
        first: index of the undisturbed step that the first step of `resumed` repeats.
    """
    for index in range(first, max(map(len, undisturbed))):
        pairs = [
            (Place(expected, index, first), steps[index - first])
            for expected, steps in zip(undisturbed, resumed, strict=True)
            if index < min(len(expected), first + len(steps))
        ]
        found = [each for check in _CHECKS for place, step in pairs for each in check(place, step)]
        if found:
            return found
    return []


def compare_on_others(undisturbed: Ranks, resumed: Ranks, first: int, tolerance: float) -> list[Finding]:
    """Return the differences of a run on a different number of ranks, at the first step that differs.

    The settings, and the samples of all ranks together, must equal those settings and samples of the
    undisturbed run. Weights may differ by rounding.

    Args:
        undisturbed: steps of the undisturbed run.
        resumed: steps of a run on a different number of ranks.
        first: index of the undisturbed step that the first step of `resumed` repeats.
        tolerance: largest relative difference of a parameter's norm.
    """
    # A kill can leave some ranks without the last step.
    for index in range(first, min(len(undisturbed[0]), *(first + len(steps) for steps in resumed))):
        place = Place(undisturbed[0], index, first, of_all=True)
        ours, theirs = [steps[index] for steps in undisturbed], [steps[index - first] for steps in resumed]
        exact = (_weights, _optimizer, _settings) if index == first else (_settings,)
        checks = [*(check(place, theirs[0]) for check in exact), _shares(place, ours, theirs)]
        findings = list(chain(*checks)) or list(_sizes(place, theirs[0], tolerance))
        if findings:
            return findings
    return []


def _sizes(place: Place, found: Step, tolerance: float) -> Iterator[Finding]:
    for name, ours, theirs in zip(found.names, place.expected.sizes, found.sizes, strict=False):
        if abs(ours - theirs) > tolerance * max(ours, theirs):
            what = f"the norm of {name} before {place.name} differs by more than {tolerance:g} of its value"
            yield place.finding("scale", f"{what} on {found.world_size} ranks, from equal samples")


def _shares(place: Place, ours: Sequence[Step], theirs: Sequence[Step]) -> Iterator[Finding]:
    expected, found = (Counter(chain(*(step.samples for step in steps))) for steps in (ours, theirs))
    if expected != found:
        more, fewer = (found - expected).total(), (expected - found).total()
        what = f"{place.name} trains on {more} samples that it must not use, and leaves out {fewer}"
        yield place.finding("shares", f"on {len(theirs)} ranks, {what}")


def _weights(place: Place, found: Step) -> Iterator[Finding]:
    expected = place.expected
    pairs = zip(found.names, expected.weights, found.weights, strict=False)
    names = [name for name, ours, theirs in pairs if ours != theirs]
    if not names and len(expected.weights) == len(found.weights):
        return
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if place.index > place.first:
        what = f"the weights ({listed}) before {place.name} differ, although earlier steps are equal"
        yield place.finding("loss", what)
    else:
        equal = f"{len(found.weights) - len(names)} of {len(expected.weights)}"
        near = f"nearest: {place.name}, where {equal} parameters are equal, but not {listed}"
        yield place.finding(
            "weights", f"the script resumes with weights that no undisturbed step has ({near})"
        )


def _optimizer(place: Place, found: Step) -> Iterator[Finding]:
    expected = place.expected.state
    kinds = [kind for kind in {**expected, **found.state} if expected.get(kind) != found.state.get(kind)]
    if kinds:
        which = found.optimizer_class
        if any(step.optimizer for step in place.steps):
            which = f"optimizer {found.optimizer + 1} ({which})"
        how = "has a different state" if found.state else "begins without its state"
        yield place.finding("optimizer", f"{which} {how} ({', '.join(kinds)}) at {place.name}")


def _settings(place: Place, found: Step) -> Iterator[Finding]:
    expected = place.expected.options
    for group, (ours, theirs) in enumerate(zip(expected, found.options, strict=False)):
        for name in (name for name in ours if ours[name] != theirs.get(name)):
            words = "the learning rate" if name == "lr" else f"the optimizer's {name}"
            of_group = f" of parameter group {group}" if len(expected) > 1 else ""
            values = f"{_short(theirs.get(name))}, but {_short(ours[name])} in the undisturbed run"
            yield place.finding("settings", f"{words}{of_group} at {place.name} is {values}")


def _samples(place: Place, found: Step) -> Iterator[Finding]:
    if place.expected.batches != found.batches:
        yield place.finding(*_explain_samples(place, found))


def _explain_samples(place: Place, found: Step) -> tuple[str, str]:
    expected = place.expected
    if len(found.losses) < len(expected.losses):
        counts = f"{len(found.losses)}, but {len(expected.losses)} in the undisturbed run"
        return "accumulation", f"the number of batches whose gradients {place.name} accumulates is {counts}"
    if Counter(found.samples) == Counter(expected.samples):
        return "shuffled", f"{place.name} has its samples in a different order"
    epochs = epochs_of(place.steps)
    epoch, offset = epochs[place.index]
    same = [index for index, step in enumerate(place.steps) if step.batches == found.batches]
    for copied, at in (epochs[index] for index in same):
        if copied != epoch and at == offset:
            what = f"the order of epoch {epoch} is that of epoch {copied}, first at {place.name}"
            return "order of an epoch", what
    if same:
        nearest = min(same, key=lambda index: abs(index - place.index))
        if epochs[nearest][1] == 0 and place.index == place.first:
            batch = f"the first batch of an epoch (step {nearest + 1}'s)"
            return "epoch begun again", f"{place.name} trains on {batch}"
        kind, again = ("batch repeated", " again") if nearest < place.index else ("batch left out", "")
        return kind, f"{place.name} trains on the batch of step {nearest + 1}{again}"
    known = {sample for step in place.steps for sample in step.samples}
    if offset == 0 or known.issuperset(found.samples):
        return "order of an epoch", f"the order of epoch {epoch} differs, first at {place.name}"
    drawn = "".join(f" ({name}'s generator differs)" for name in _unequal_generators(expected, found))
    return "samples", f"{place.name} trains on samples that the undisturbed run never uses{drawn}"


def _state(place: Place, found: Step) -> Iterator[Finding]:
    copies = {weights for step in place.steps for weights in (*step.weights, *step.result)}
    missing = Counter(map(tuple, place.expected.beside)) - Counter(map(tuple, found.beside))
    # A copy of earlier weights, such as a copy for a file, does not influence later steps.
    names = sorted({name for name, value in missing if value not in copies})
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield place.finding("state", f"{names[0]}{more}, which no optimizer trains, differs at {place.name}")


def _loss(place: Place, found: Step) -> Iterator[Finding]:
    expected = place.expected
    # Values are compared by their `repr`, because two NaN have equal representations.
    if repr(expected.losses) != repr(found.losses):
        ours, theirs = (_short(sum(step.losses) / max(len(step.losses), 1)) for step in (expected, found))
        what = f"the loss of {place.name} is {theirs}, but {ours} in the undisturbed run"
        if generators := _unequal_generators(expected, found):
            whose = f"rank {found.rank}'s generator" if found.world_size > 1 else "the generator's state"
            yield place.finding("generator", f"{what}; {whose} ({', '.join(generators)}) differs")
        else:
            yield place.finding("loss", what)


def _update(place: Place, found: Step) -> Iterator[Finding]:
    if place.expected.result != found.result:
        yield place.finding("loss", f"the update of {place.name} gives different weights")


_CHECKS: Sequence[Callable[[Place, Step], Iterator[Finding]]] = (
    _weights, _optimizer, _settings, _samples, _state, _loss, _update,
)  # fmt: skip
"""Comparisons of a step, causes before effects."""


def _unequal_generators(expected: Step, found: Step) -> list[str]:
    ours, theirs = expected.generators, found.generators
    return sorted(name for name in ours if name in theirs and ours[name] != theirs[name])


def _short(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def epochs_of(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the epoch of each step, from 1, and the step's index in the epoch.

    A repeated sample begins a new epoch.
    """
    found: list[tuple[int, int]] = []
    seen, epoch, offset = set[str](), 1, 0
    for step in steps:
        # A loss function is also a module. The samples of a loss function are labels, which repeat within an
        # epoch, so only the model's samples count.
        model = step.batches[0][0] if step.batches else ""
        samples = {sample for name, batch in step.batches if name == model for sample in batch}
        if samples & seen:
            seen, epoch, offset = set(), epoch + 1, 0
        found.append((epoch, offset))
        seen |= samples
        offset += 1
    return found


def remove_unseeded_generators(undisturbed: Ranks, again: Ranks) -> None:
    """Remove generators from the undisturbed steps that differ in a second run from the start.

    The script does not seed these generators, so a resume can't restore them either.
    """
    unseeded = {
        name
        for ranks in zip(undisturbed, again, strict=False)
        for ours, theirs in zip(*ranks, strict=False)
        for name in _unequal_generators(ours, theirs)
    }
    for step in chain(*undisturbed):
        for name in unseeded:
            step.generators.pop(name, None)


def silent_generators(undisturbed: Ranks, resumed: Ranks, first: int) -> list[str]:
    """Return the generators whose states differ after the last common step."""
    last = min(len(undisturbed[0]), *(first + len(steps) for steps in resumed)) - 1
    pairs = ((ours[last], theirs[last - first]) for ours, theirs in zip(undisturbed, resumed, strict=True))
    return sorted({name for ours, theirs in pairs for name in _unequal_generators(ours, theirs)})
