"""PBT on the digits recipe compared with its own best fixed member.

    python -m benchmarks.pbt_digits [--seeds N] [--small]

For each seed a population trains in separate processes. Then the same members train with exploit off: same
configurations and epochs, so the same cost. Prints loss and accuracy of the best member at the end of both,
whether PBT is better, equal within two standard errors or worse, and rows as one line of JSON.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import trainkit
from benchmarks.over_seeds import Cell, paired
from benchmarks.rows import Report, Row, parser
from recipes import digits
from trainkit import tune
from trainkit.tune import schedulers as sch

SEEDS, MEMBERS, EPOCHS, INTERVAL = 5, 8, 24, 4
SMALL_EPOCHS = 5


def best(data: dict[str, Any], folder: str, seed: int, epochs: int, *, fixed: bool) -> tuple[float, float]:
    """Return loss and accuracy of the member with the best final loss.

    Args:
        data: arrays of the digits.
        folder: folder for the experiment.
        seed: seed of the configurations and the scheduler.
        epochs: number of epochs that each member trains.
        fixed: True: exploit is off.
    """
    scheduler = sch.PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=INTERVAL,
        hyperparam_mutations=digits.SPACE,
        quantile_fraction=0 if fixed else 0.25,
        synch=not fixed,
        log_config=False,
    )
    results = tune.Tuner(
        tune.with_parameters(digits.Network, data=data),
        param_space=digits.SPACE,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=MEMBERS, scheduler=scheduler, seed=seed, reuse_actors=True
        ),
        run_config=tune.RunConfig(
            name=f"{'fixed' if fixed else 'pbt'}-{seed}",
            storage_path=folder,
            stop={"training_iteration": epochs},
            verbose=0,
        ),
    ).fit()
    if (
        results.num_terminated != MEMBERS
        or sum(len(result.history) for result in results) != MEMBERS * epochs
    ):
        raise RuntimeError(f"{MEMBERS} members were to run {epochs} epochs each, and these came: {results}")
    last = results.get_best_result().metrics
    return last["loss"], last["accuracy"]


def main() -> None:
    """Run both and print the rows."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=SEEDS, help="%(default)s")
    arguments = options.parse_args()
    seeds, epochs = (1, SMALL_EPOCHS) if arguments.small else (arguments.seeds, EPOCHS)
    trainkit.init(num_cpus=os.cpu_count())
    data = digits.load()
    print(f"{'seed':<8}{'PBT: loss, accuracy':>24}{'best fixed member':>24}")
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            sides = [best(data, folder, seed, epochs, fixed=fixed) for fixed in (False, True)]
            pairs.append(sides)
            told = [f"{loss:.4f}, {accuracy:.2%}" for loss, accuracy in pairs[-1]]
            print(f"{seed:<8}{told[0]:>24}{told[1]:>24}", flush=True)
    trainkit.shutdown()
    losses = [[side[0] for side in sides] for sides in zip(*pairs, strict=True)]
    misses = [[1 - side[1] for side in sides] for sides in zip(*pairs, strict=True)]
    for name, (ours, theirs) in {"loss": losses, "error": misses}.items():
        comparison = paired(ours, theirs)
        print(
            f"{name:<8}{Cell.of(ours)!s:>24}{Cell.of(theirs)!s:>24}  PBT is {comparison.verdict}: lower by "
            f"{comparison.gain:.4f}, standard error {comparison.error:.4f}"
        )
    with Report("pbt_digits", "fixed", small=arguments.small) as report:
        report.add(Row("loss of the member that ends best").measured(*losses))
        report.add(Row("its error").measured(*misses))


if __name__ == "__main__":
    main()
