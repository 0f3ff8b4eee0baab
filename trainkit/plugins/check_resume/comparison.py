"""Comparison of a resumed training with an undisturbed one, as pure functions of their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from trainkit.plugins.check_resume.records import Ranks, Step

ADVICE = {
    "weights": "save and load model.state_dict() of every model, as it is after the checkpoint's last step",
    "optimizer": "save every optimizer.state_dict(), and load it after moving the model to its device",
    "settings": "add scheduler.state_dict() to the checkpoint, or compute the value from the saved step",
    "state": "save model.state_dict() with its buffers, and averages (EMA) and copies of the weights",
    "accumulation": "write checkpoints after an optimizer step only, or save the gradients as well",
    "shuffled": "save the state of the generator that shuffles",
    "epoch begun again": "save the number of batches that the epoch's steps have used, and skip as many",
    "batch repeated": "save the number of batches after the step that uses the last one, and skip as many",
    "batch left out": "save the number of batches that steps have used, not that the loader has read",
    "order of an epoch": "call sampler.set_epoch(epoch) with the saved epoch, shuffle by a generator seeded "
    "with the epoch, or save the generator's state",
    "samples": "save the states of all generators and samplers, or seed each epoch's order and augmentation",
    "generator": "save the states of all generators, such as torch.get_rng_state(), of every rank",
    "loss": "save what the loss depends on, such as a count of steps; or if operations give varying "
    "results, call torch.use_deterministic_algorithms(True)",
    "shares": "share out the global batches of one order over the ranks, and count them as the place",
    "scale": "keep the global batch, and average the gradients over it",
    "failed": "mend this error, which a run from the start does not have",
    "ended": "compute the remaining epochs and steps from the checkpoint's",
    "began again": "write a checkpoint within these steps, or compare more --steps, into the working folder "
    "or {run}, and load it when the command starts",
    "not reproducible": "seed torch, numpy and random at the start; if the script keeps checkpoints outside "
    "its working folder, pass {run} as their folder",
}
"""Changes of the script, by the kind of a difference."""


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
    """A step of a rank, with the undisturbed steps of this rank.

    Attributes:
        rank: the rank.
        several: True if the training has several ranks.
        index: index of the step in `steps`.
        first: index of the first step after the resume.
        steps: the undisturbed steps.
    """

    rank: int
    several: bool
    index: int
    first: int
    steps: Sequence[Step]

    @property
    def name(self) -> str:
        """The step's number, and the rank if several exist."""
        return f"step {self.index + 1}" + (f" on rank {self.rank}" if self.several else "")

    def finding(self, kind: str, what: str) -> Finding:
        """Return a difference at this place."""
        return Finding(kind, self.index + 1, self.rank, what)


def align(undisturbed: Sequence[Step], resumed: Step) -> int:
    """Return the index of the undisturbed step that `resumed`, the first step after a resume, repeats.

    The weights decide. If the weights of several steps fit equally well, as with a learning rate of 0, the
    step that is equal in most other respects is chosen, and of equal steps the last one.
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
    several = len(undisturbed) > 1
    for offset in range(max(map(len, resumed))):
        found: list[Finding] = []
        for check in _CHECKS:
            for rank, (expected, steps) in enumerate(zip(undisturbed, resumed, strict=True)):
                place = Place(rank, several, first + offset, first, expected)
                if offset < len(steps) and place.index < len(expected):
                    found += check(place, expected[place.index], steps[offset])
        if found:
            return found
    return []


def compare_on_others(undisturbed: Ranks, resumed: Ranks, first: int, tolerance: float) -> list[Finding]:
    """Return the differences of a run on a different number of ranks, at the first step that differs.

    The settings, and the samples of all ranks together, must be equal. Weights may differ by rounding.

    Args:
        undisturbed: steps of the undisturbed run.
        resumed: steps of a run on a different number of ranks.
        first: index of the undisturbed step that the first step of `resumed` repeats.
        tolerance: largest relative difference of a parameter's norm.
    """
    for offset, found in enumerate(resumed[0][: len(undisturbed[0]) - first]):
        place = Place(0, False, first + offset, first, undisturbed[0])
        expected = undisturbed[0][place.index]
        exact = (_weights, _optimizer, _settings) if offset == 0 else (_settings,)
        findings = [finding for check in exact for finding in check(place, expected, found)]
        findings += _shares(
            place,
            [steps[place.index : place.index + 1] for steps in undisturbed],
            [steps[offset : offset + 1] for steps in resumed],
        )
        pairs = zip(found.names, expected.sizes, found.sizes, strict=False)
        far = [name for name, ours, theirs in pairs if abs(ours - theirs) > tolerance * max(ours, theirs)]
        if far and not findings:
            what = f"the norm of {far[0]} before {place.name} differs by more than {tolerance:g} of its value"
            findings = [place.finding("scale", f"{what} on {len(resumed)} ranks, from equal samples")]
        if findings:
            return findings
    return []


def _shares(place: Place, ours: Ranks, theirs: Ranks) -> Iterator[Finding]:
    if not all(steps and steps[0].result for steps in (*ours, *theirs)):
        return
    expected, found = (
        Counter(each for (step,) in ranks for each in step.samples) for ranks in (ours, theirs)
    )
    if expected != found:
        more, fewer = (found - expected).total(), (expected - found).total()
        what = f"{place.name} trains on {more} samples that it must not use, and leaves out {fewer}"
        yield place.finding("shares", f"on {len(theirs)} ranks, {what}")


def _weights(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
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
        yield place.finding("weights", f"the script resumes with weights of no undisturbed step ({near})")


def _optimizer(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    kinds = [k for k in {**expected.state, **found.state} if expected.state.get(k) != found.state.get(k)]
    if kinds:
        several = max(step.optimizer for step in place.steps) > 0
        which = (
            f"optimizer {found.optimizer + 1} ({found.optimizer_class})" if several else found.optimizer_class
        )
        how = "has a different state" if found.state else "begins without its state"
        yield place.finding("optimizer", f"{which} {how} ({', '.join(kinds)}) at {place.name}")


def _settings(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    for group, (ours, theirs) in enumerate(zip(expected.options, found.options, strict=False)):
        for name in (name for name in ours if ours[name] != theirs.get(name)):
            words = "the learning rate" if name == "lr" else f"the optimizer's {name}"
            of_group = f" of parameter group {group}" if len(expected.options) > 1 else ""
            values = f"{_short(theirs.get(name))}, undisturbed {_short(ours[name])}"
            yield place.finding("settings", f"{words}{of_group} at {place.name} is {values}")


def _samples(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    if found.result and expected.result and expected.batches != found.batches:
        yield place.finding(*_explain_samples(place, expected, found))


def _explain_samples(place: Place, expected: Step, found: Step) -> tuple[str, str]:
    if len(found.losses) < len(expected.losses):
        counts = f"{len(found.losses)}, undisturbed {len(expected.losses)}"
        return "accumulation", f"the number of batches whose gradients {place.name} accumulates is {counts}"
    if Counter(found.samples) == Counter(expected.samples):
        return "shuffled", f"{place.name} has its samples in a different order"
    epochs = epochs_of(place.steps)
    same = [n for n, step in enumerate(place.steps) if step.batches == found.batches]
    if same:
        (epoch, offset), *others = (_epoch_and_offset(epochs, n) for n in (place.index, *same))
        copied = next((number for number, at in others if number != epoch and at == offset), None)
        if copied is not None:
            what = f"the order of epoch {epoch} is that of epoch {copied}, first at {place.name}"
            return "order of an epoch", what
        other = min(same, key=lambda n: abs(n - place.index))
        if other in epochs and place.index == place.first:
            return (
                "epoch begun again",
                f"{place.name} trains on the first batch of an epoch (step {other + 1}'s)",
            )
        if other < place.index:
            return "batch repeated", f"{place.name} trains on the batch of step {other + 1} again"
        return "batch left out", f"{place.name} trains on the batch of step {other + 1}"
    known = {sample for step in place.steps for sample in step.samples}
    if place.index in epochs or set(found.samples) <= known:
        epoch, _ = _epoch_and_offset(epochs, place.index)
        return "order of an epoch", f"the order of epoch {epoch} differs, first at {place.name}"
    drawn = "".join(f" ({name}'s generator differs)" for name in _unequal_generators(expected, found))
    return "samples", f"{place.name} trains on samples that the undisturbed run doesn't use there{drawn}"


def _epoch_and_offset(epochs: Sequence[int], index: int) -> tuple[int, int]:
    """Return the number of the epoch of a step, from 1, and the step's index within the epoch."""
    number = sum(start <= index for start in epochs)
    return number, index - epochs[number - 1]


def _state(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    copies = {weights for step in place.steps for weights in (*step.weights, *step.result)}
    missing = Counter(map(tuple, expected.beside)) - Counter(map(tuple, found.beside))
    # A copy of earlier weights, such as one for a file, influences no later step.
    names = sorted({name for name, value in missing if value not in copies})
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield place.finding("state", f"{names[0]}{more}, which no optimizer trains, differs at {place.name}")


def _loss(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    if found.result and expected.result and repr(expected.losses) != repr(found.losses):
        ours, theirs = (_short(sum(step.losses) / max(len(step.losses), 1)) for step in (expected, found))
        what = f"the loss of {place.name} is {theirs}, undisturbed {ours}"
        if generators := _unequal_generators(expected, found):
            whose = f"rank {place.rank}'s generator" if place.several else "the generator's state"
            yield place.finding("generator", f"{what}; {whose} ({', '.join(generators)}) differs")
        else:
            yield place.finding("loss", what)


def _update(place: Place, expected: Step, found: Step) -> Iterator[Finding]:
    if found.result and expected.result and expected.result != found.result:
        yield place.finding("loss", f"the update of {place.name} gives different weights")


_CHECKS: Sequence[Callable[[Place, Step, Step], Iterator[Finding]]] = (
    _weights, _optimizer, _settings, _samples, _state, _loss, _update,
)  # fmt: skip
"""Comparisons of a step, causes before effects."""


def _unequal_generators(expected: Step, found: Step) -> list[str]:
    ours, theirs = expected.generators, found.generators
    return sorted(name for name in ours if name in theirs and ours[name] != theirs[name])


def _short(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def epochs_of(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the steps that begin an epoch: the first, and each that repeats a sample."""
    starts, seen = [0], set[str]()
    for index, step in enumerate(steps):
        # A loss function is a module, too, and its samples are labels, which repeat within an epoch.
        calls = [batch for batch, of in zip(step.batches, step.modules, strict=True) if of == step.modules[0]]
        samples = {sample for batch in calls for sample in batch}
        if samples & seen:
            starts.append(index)
            seen = set()
        seen |= samples
    return starts


def with_seeded_generators(undisturbed: Ranks, again: Ranks) -> Ranks:
    """Return the undisturbed steps without generators that differ in a second run from the start.

    The script does not seed these generators, so a resume can't restore them either.
    """
    unseeded = set(_differing(undisturbed, again, 0))
    return [
        [
            replace(step, generators={n: g for n, g in step.generators.items() if n not in unseeded})
            for step in steps
        ]
        for steps in undisturbed
    ]


def silent_generators(undisturbed: Ranks, resumed: Ranks, first: int) -> list[str]:
    """Return the generators whose states differ after the last common step."""
    done = min(sum(bool(step.result) for step in steps) for steps in resumed)
    last = max(0, min(len(undisturbed[0]) - first, done) - 1)
    return _differing([ours[first + last :] for ours in undisturbed], [steps[last:] for steps in resumed], 0)


def _differing(undisturbed: Ranks, resumed: Ranks, first: int) -> list[str]:
    pairs = (
        pair for ours, theirs in zip(undisturbed, resumed, strict=False)
        for pair in zip(ours[first:], theirs, strict=False)
    )  # fmt: skip
    return sorted({name for ours, theirs in pairs for name in _unequal_generators(ours, theirs)})
