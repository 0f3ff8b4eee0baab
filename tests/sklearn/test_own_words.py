"""What the tuner has to say is said in the words of who searches: his arguments and his candidates."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.linear_model import SGDClassifier

from tests.sklearn.searches import X, Y, search, session  # noqa: F401 - the fixture
from trainkit import tune
from trainkit.errors import ConfigError, MetricError, TrialError
from trainkit.sklearn.settings import names_of_settings
from trainkit.tune.core.setting_names import already_there, how_to_resume, named_as, setting

NAMES = names_of_settings("param_grid", True, {"callbacks": []})


@pytest.mark.parametrize(
    ("name", "owner", "own", "said"),
    [
        ("stop", "", "stop", "stopper"),
        ("storage_path", "", "storage_path", "local_dir"),
        ("name", "", "name", "name"),
        ("stop", "RunConfig", "RunConfig(stop=...)", "stopper"),
        ("num_samples", "TuneConfig", "TuneConfig(num_samples=...)", "n_trials"),
        (
            "trial_timeout_s",
            "TuneConfig",
            "TuneConfig(trial_timeout_s=...)",
            "tune_params={'trial_timeout_s': ...}",
        ),
        ("param_space", "", "param_space", "param_grid"),
    ],
)
def test_settings_of_the_tuner_become_arguments_of_the_search(
    name: str, owner: str, own: str, said: str
) -> None:
    assert setting(name, owner) == own
    with named_as(NAMES):
        assert setting(name, owner) == said
    assert setting(name, owner) == own


def test_a_search_goes_on_by_another_fit_and_the_tuner_by_a_restore() -> None:
    assert how_to_resume("a") == "resume by Tuner.restore('a', trainable).fit()"
    assert already_there("s3://a/b") == (
        "s3://a/b already holds an experiment; resume it by Tuner.restore('s3://a/b', trainable).fit(), "
        "or choose another RunConfig(name=...)"
    )
    with named_as(NAMES):
        assert how_to_resume("a") == "fit again"
        assert already_there("s3://a/b") == "s3://a/b already holds an experiment; choose another name"


def test_what_was_given_as_a_setting_of_the_tuner_is_called_so() -> None:
    with pytest.raises(ConfigError, match=r"^stop=3"):
        search().fit(X, Y, tune_params={"stop": 3})


def wants_more(trial_id: str, result: dict[str, Any]) -> bool:
    return bool(result["accuracy"] > 1)


@pytest.mark.parametrize("early_stopping", [None, True])
def test_a_stopper_that_fails_is_not_passed_over(early_stopping: Any) -> None:
    whole = search({"alpha": [1e-3, 1e-2]}, early_stopping=early_stopping, n_trials=2)
    whole.estimator = SGDClassifier()
    whole.max_iters = 2 if early_stopping else 1
    with pytest.raises(MetricError, match="stopper waits for 'accuracy', which was not reported"):
        whole.set_params(stopper={"accuracy": 0.9}).fit(X, Y)
    with pytest.raises(TrialError, match=r"KeyError: 'accuracy' \(raised by the rule in stopper\)"):
        whole.set_params(stopper=wants_more).fit(X, Y)


class Second:
    """Ends at the second of the reports that it was shown, and keeps how many those were."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen += 1
        return self.seen == 2


@pytest.mark.parametrize("several", [False, True])
def test_a_function_that_ends_candidates_is_called_as_the_argument_is(
    several: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stopper = Second()
    whole = search({"alpha": [1e-3]}, early_stopping=True, max_iters=4, n_trials=1, verbose=1)
    whole.estimator = SGDClassifier()
    whole.set_params(stopper=[{"training_iteration": 3}, stopper] if several else stopper).fit(X, Y)
    assert "stopped after 2 reports" in (said := capsys.readouterr().out)
    assert "stopped by stopper\n" in said
    assert stopper.seen == 2, "it is the user's own object that was asked"


def test_a_search_that_is_kept_goes_on_by_another_fit(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(estimator: Any, X: Any, y: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(scoring=interrupt, local_dir=str(tmp_path), name="kept").fit(X, Y)
    assert "Tuner.restore" not in caplog.text


@pytest.mark.parametrize("space", ["listed", "conditional"])
def test_fewer_candidates_than_asked_for_are_told(space: str) -> None:
    listed = {"C": [1.0, 2.0]}
    conditional = {"kernel": ["rbf"], "C": tune.when({"kernel": "rbf"}, tune.choice([1.0, 2.0]))}
    few = search(listed if space == "listed" else conditional, n_trials=6)
    few.search_optimization = "optuna" if space == "listed" else "random"
    with pytest.warns(UserWarning, match="n_trials=6, but only 2 candidates were evaluated") as told:
        few.fit(X, Y)
    assert {warning.filename for warning in told} == {__file__}
    assert len(few.cv_results_["params"]) == 2
