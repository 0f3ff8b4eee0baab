"""Other libraries with their own defaults, as a program that answers questions; runs in their environment.

Each class is one method. `suggest` returns the configuration of a new trial. `report` receives a loss before
the trial's last, and returns True if the library stops the trial. `end` receives the last loss of a trial.

Lists of numbers are ordered where a library orders numbers of a list by itself, or has a type of its own
for ordered lists; lists are categories for Optuna and HyperOpt, as in their documentation.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.league.lines import answer

Space = Sequence[Mapping[str, Any]]
"""Parameters as JSON, with the keys of `Parameter`."""


def _is_numeric(parameter: Mapping[str, Any]) -> bool:
    return all(isinstance(value, int | float) for value in parameter["values"])


def _of_one_type(values: Sequence[Any]) -> list[Any]:
    """Return the values of a list, as floats if any of them is a float."""
    return [float(value) for value in values] if float in map(type, values) else list(values)


class Optuna:
    """Optuna: the sampler of a study that names none is TPE, and the pruner is the median rule.

    Args:
        evaluations: number of trials.
        reports: number of reports of a complete trial.
    """

    package = "optuna"
    ordered = False
    """True: a list of numbers is the range of its places, an integer, in place of categories."""

    def __init__(self, space: Space, seed: int, evaluations: int, reports: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna, self._space, self._reports = optuna, space, reports
        self._study = optuna.create_study(
            sampler=self._sampler(seed),
            pruner=self._pruner(seed),
            study_name=f"seed {seed}",  # the Hyperband pruner draws the bracket of a trial from this name
        )
        self._trials: dict[int, Any] = {}

    def _sampler(self, seed: int) -> Any:
        return self._optuna.samplers.TPESampler(seed=seed)

    def _pruner(self, seed: int) -> Any:
        return self._optuna.pruners.MedianPruner()

    def suggest(self, number: int) -> dict[str, Any]:
        trial = self._trials[number] = self._study.ask()
        config: dict[str, Any] = {}
        for each in self._space:
            name = each["name"]
            if each["parent"] and config.get(each["parent"]) not in each["branches"]:
                continue
            if each["values"] and self.ordered and _is_numeric(each):
                config[name] = each["values"][trial.suggest_int(name, 0, len(each["values"]) - 1)]
            elif each["values"]:
                config[name] = trial.suggest_categorical(name, each["values"])
            elif each["integer"]:
                config[name] = trial.suggest_int(name, each["low"], each["high"], log=each["log"])
            else:
                config[name] = trial.suggest_float(name, each["low"], each["high"], log=each["log"])
        return config

    def report(self, number: int, step: int, loss: float) -> bool:
        self._trials[number].report(loss, step)
        return bool(self._trials[number].should_prune())

    def end(self, number: int, loss: float, *, stopped: bool) -> None:
        pruned = self._optuna.trial.TrialState.PRUNED
        if stopped:
            self._study.tell(self._trials[number], state=pruned)
        else:
            self._study.tell(self._trials[number], loss)


class OptunaHyperband(Optuna):
    """Optuna with its Hyperband pruner."""

    def _pruner(self, seed: int) -> Any:
        return self._optuna.pruners.HyperbandPruner(max_resource=self._reports)


class OptunaGP(Optuna):
    """Optuna with its Gaussian process."""

    def _sampler(self, seed: int) -> Any:
        return self._optuna.samplers.GPSampler(seed=seed)


class OptunaCMA(Optuna):
    """Optuna with CMA-ES, which draws lists at random."""

    def _sampler(self, seed: int) -> Any:
        return self._optuna.samplers.CmaEsSampler(seed=seed)


class OptunaOrdered(Optuna):
    """Optuna, with lists of numbers in their order."""

    ordered = True


class OptunaCMAOrdered(OptunaCMA):
    """Optuna with CMA-ES, with lists of numbers in their order."""

    ordered = True


class HyperOpt:
    """HyperOpt with TPE."""

    package = "hyperopt"

    def __init__(self, space: Space, seed: int, evaluations: int, reports: int) -> None:
        import hyperopt
        import numpy as np
        from hyperopt import hp

        def domain(each: Mapping[str, Any]) -> Any:
            name, low, high = each["name"], each["low"], each["high"]
            if each["values"]:
                return hp.choice(name, each["values"])
            if each["integer"]:
                return hp.uniformint(name, low, high)
            if each["log"]:
                return hp.loguniform(name, float(np.log(low)), float(np.log(high)))
            return hp.uniform(name, low, high)

        made: dict[str, Any] = {}
        for each in space:
            children = [other for other in space if other["parent"] == each["name"]]
            if children:
                branches = [
                    {
                        each["name"]: value,
                        **{c["name"]: domain(c) for c in children if value in c["branches"]},
                    }
                    for value in each["values"]
                ]
                made[each["name"]] = hp.choice(each["name"], branches)
            elif not each["parent"]:
                made[each["name"]] = domain(each)
        self._hyperopt = hyperopt
        self._domain = hyperopt.Domain(lambda config: 0.0, made)
        self._trials = hyperopt.Trials()
        self._rng = np.random.default_rng(seed)  # as in fmin
        self._documents: dict[int, Any] = {}

    def suggest(self, number: int) -> dict[str, Any]:
        hyperopt, trials = self._hyperopt, self._trials
        ids = trials.new_trial_ids(1)
        trials.refresh()
        documents = hyperopt.tpe.suggest(ids, self._domain, trials, int(self._rng.integers(2**31 - 1)))
        trials.insert_trial_docs(documents)
        trials.refresh()
        self._documents[number] = next(each for each in trials._dynamic_trials if each["tid"] == ids[0])
        drawn = {key: value[0] for key, value in documents[0]["misc"]["vals"].items() if value}
        config: dict[str, Any] = {}
        for key, value in hyperopt.space_eval(self._domain.expr, drawn).items():
            config |= value if isinstance(value, dict) else {key: value}
        return {key: value.item() if hasattr(value, "item") else value for key, value in config.items()}

    def report(self, number: int, step: int, loss: float) -> bool:
        return False

    def end(self, number: int, loss: float, *, stopped: bool) -> None:
        self._documents[number]["state"] = self._hyperopt.JOB_STATE_DONE
        self._documents[number]["result"] = {"loss": loss, "status": self._hyperopt.STATUS_OK}
        self._trials.refresh()


class SMAC:
    """SMAC3's facade for hyperparameter optimization: a random forest."""

    package = "smac"

    def __init__(self, space: Space, seed: int, evaluations: int, reports: int) -> None:
        import smac
        from ConfigSpace import (
            CategoricalHyperparameter,
            ConfigurationSpace,
            InCondition,
            OrdinalHyperparameter,
            UniformFloatHyperparameter,
            UniformIntegerHyperparameter,
        )

        logging.disable(logging.WARNING)
        self._smac = smac
        made = ConfigurationSpace(seed=seed)
        for each in space:
            name, low, high, log = each["name"], each["low"], each["high"], each["log"]
            if each["values"]:
                kind = OrdinalHyperparameter if _is_numeric(each) else CategoricalHyperparameter
                made.add(kind(name, each["values"]))
            elif each["integer"]:
                made.add(UniformIntegerHyperparameter(name, low, high, log=log))
            else:
                made.add(UniformFloatHyperparameter(name, low, high, log=log))
        for each in space:
            if each["parent"]:
                made.add(InCondition(made[each["name"]], made[each["parent"]], list(each["branches"])))
        self._folder = tempfile.mkdtemp()
        scenario = smac.Scenario(
            made, deterministic=True, seed=seed, n_trials=evaluations, output_directory=self._folder
        )
        self._facade = smac.HyperparameterOptimizationFacade(
            scenario, lambda config, seed: 0.0, logging_level=False, overwrite=True
        )
        self._asked: dict[int, Any] = {}

    def suggest(self, number: int) -> dict[str, Any]:
        self._asked[number] = info = self._facade.ask()
        return {key: value.item() if hasattr(value, "item") else value for key, value in info.config.items()}

    def report(self, number: int, step: int, loss: float) -> bool:
        return False

    def end(self, number: int, loss: float, *, stopped: bool) -> None:
        self._facade.tell(self._asked[number], self._smac.runhistory.dataclasses.TrialValue(cost=loss))

    def close(self) -> None:
        shutil.rmtree(self._folder)


class Ax:
    """Ax's client: a Gaussian process of BoTorch."""

    package = "ax-platform"

    def __init__(self, space: Space, seed: int, evaluations: int, reports: int) -> None:
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        def parameter(each: Mapping[str, Any]) -> Any:
            if not each["values"]:
                kind = "int" if each["integer"] else "float"
                scaling = "log" if each["log"] else "linear"
                ends = (each["low"], each["high"])
                return RangeParameterConfig(each["name"], ends, kind, scaling=scaling)
            values = _of_one_type(each["values"])
            kind = type(values[0]).__name__
            return ChoiceParameterConfig(each["name"], values, kind)

        logging.disable(logging.WARNING)
        self._client = Client(random_seed=seed)
        self._client.configure_experiment([parameter(each) for each in space])
        self._client.configure_optimization("-loss")
        self._numbers: dict[int, int] = {}

    def suggest(self, number: int) -> dict[str, Any]:
        ((index, config),) = self._client.get_next_trials(1).items()
        self._numbers[number] = index
        return dict(config)

    def report(self, number: int, step: int, loss: float) -> bool:
        return False

    def end(self, number: int, loss: float, *, stopped: bool) -> None:
        self._client.complete_trial(self._numbers[number], {"loss": loss})


class SyneTune:
    """Syne Tune's conformal quantile regression; with several reports, ASHA on top of it."""

    package = "syne-tune"

    def __init__(self, space: Space, seed: int, evaluations: int, reports: int) -> None:
        from syne_tune import config_space as cs
        from syne_tune.optimizer import baselines

        def domain(each: Mapping[str, Any]) -> Any:
            low, high, log = each["low"], each["high"], each["log"]
            if each["values"]:
                values = _of_one_type(each["values"])
                return cs.ordinal(values, kind="equal") if _is_numeric(each) else cs.choice(values)
            if each["integer"]:
                return (cs.lograndint if log else cs.randint)(low, high)
            return (cs.loguniform if log else cs.uniform)(low, high)

        logging.disable(logging.WARNING)
        made = {each["name"]: domain(each) for each in space}
        if reports > 1:
            self._scheduler = baselines.ASHACQR(made, "loss", "step", reports, random_seed=seed)
        else:
            self._scheduler = baselines.CQR(made, "loss", random_seed=seed)
        self._trials: dict[int, Any] = {}
        self._last = reports

    def suggest(self, number: int) -> dict[str, Any]:
        from datetime import datetime

        from syne_tune.backend.trial_status import Trial

        config = self._scheduler.suggest().config
        self._trials[number] = Trial(trial_id=number, config=config, creation_time=datetime.now())
        self._scheduler.on_trial_add(self._trials[number])
        return dict(config)

    def report(self, number: int, step: int, loss: float) -> bool:
        answer = self._scheduler.on_trial_result(self._trials[number], {"loss": loss, "step": step})
        return bool(answer == "STOP")

    def end(self, number: int, loss: float, *, stopped: bool) -> None:
        if not stopped:
            result = {"loss": loss, "step": self._last}
            self._scheduler.on_trial_complete(self._trials[number], result)


METHODS: dict[str, Any] = {
    "Optuna TPE": Optuna,
    "Optuna Hyperband": OptunaHyperband,
    "Optuna GP": OptunaGP,
    "Optuna CMA-ES": OptunaCMA,
    "Optuna TPE, ordered": OptunaOrdered,
    "Optuna CMA-ES, ordered": OptunaCMAOrdered,
    "HyperOpt": HyperOpt,
    "SMAC": SMAC,
    "Ax": Ax,
    "Syne Tune": SyneTune,
}


def main() -> None:
    """Answer questions of one search after another."""
    warnings.simplefilter("ignore")
    search: Any = None

    def start(method: str, **arguments: Any) -> str:
        nonlocal search
        search = METHODS[method](**arguments)
        return f"{search.package} {version(search.package)}"

    def end(number: int, loss: float, stopped: bool) -> None:
        search.end(number, loss, stopped=stopped)

    def close() -> None:
        if hasattr(search, "close"):
            search.close()

    answer(
        {
            "start": start,
            "suggest": lambda number: search.suggest(number),
            "report": lambda number, step, loss: search.report(number, step, loss),
            "end": end,
            "close": close,
        }
    )


if __name__ == "__main__":
    main()
