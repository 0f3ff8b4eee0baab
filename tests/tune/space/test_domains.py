"""Every domain: what it draws, what it contains, how it is stored, what it refuses."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.tune.space.test_space import refused
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune import space as words
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config, holds_opaque

REAL = st.floats(-1e6, 1e6)
POSITIVE = st.floats(1e-6, 1e6)
STEP = st.sampled_from([0.001, 0.1, 0.25, 0.3, 1, 7, 1e-05])


@st.composite
def bounds(draw, numbers):
    lower, upper = sorted((draw(numbers), draw(numbers)))
    assume(lower < upper)
    return lower, upper


@st.composite
def domains(draw):
    kind = draw(st.sampled_from(sorted(set(words.SPELLINGS) - {"grid_search", "when", "forbid"})))
    make = words.SPELLINGS[kind]
    if kind == "choice":
        return make(draw(st.lists(st.one_of(st.none(), st.text(), st.integers(), REAL), min_size=1)))
    if kind.endswith("randn"):
        arguments = [draw(REAL), draw(POSITIVE)]
    elif kind.endswith("randint"):
        least = 1 if "log" in kind else -(10**6)
        arguments = list(draw(bounds(st.integers(least, 10**6))))
    else:
        arguments = list(draw(bounds(POSITIVE if "log" in kind else REAL)))
    if kind.startswith("q"):
        arguments.append(draw(st.integers(1, 9)) if "int" in kind else draw(STEP))
    try:
        return make(*arguments)
    except SpaceError as error:
        assume("larger than the range" not in str(error))
        raise


@given(domains(), st.integers(0, 2**32))
def test_every_draw_belongs_to_the_domain_and_the_same_seed_gives_it_again(domain, seed):
    value = domain.draw(suggestion_generator(seed, 0))
    assert domain.contains(value)
    assert repr(domain.draw(suggestion_generator(seed, 0))) == repr(value)
    if isinstance(domain, words.Categorical):
        return
    assert type(value) is (int if isinstance(domain, words.Integer) else float)
    if isinstance(domain, words.Normal):
        lower, upper = -math.inf, math.inf
    else:
        lower, upper = domain.bounds
        assert domain.lower <= lower <= upper <= domain.upper
    assert lower <= value <= upper
    if domain.q is not None:
        q = Fraction(repr(domain.q))
        k = round(Fraction(value) / q)
        assert value == k * q.numerator / q.denominator  # the multiple itself, rounded once
    if domain.cardinality is not None and domain.cardinality < 1000:
        assert value in domain.values()
        assert len(domain.values()) == domain.cardinality
        assert all(map(domain.contains, domain.values()))


@given(domains())
def test_every_domain_survives_text(domain):
    text = encode_config(domain)
    assert not holds_opaque(decode_config(text))
    assert encode_config(decode_config(text)) == text
    assert repr(decode_config(text)) == repr(domain)


@given(domains(), st.integers(0, 2**32))
def test_the_configuration_survives_text_and_is_found_again(domain, seed):
    space = Space.of({"a": domain, "b": [domain, {"c": 1}]})
    config = space.configuration(0, suggestion_generator(seed, 0))
    assert repr(decode_config(encode_config(config))) == repr(config)
    found = space.choices(decode_config(encode_config(config)))
    assert repr(space.walk(lambda name, _: found[name], suggestion_generator(0, 0))) == repr(config)
    assert space.allows(config)


@given(st.floats(0.01, 100), st.floats(1.01, 1000), st.integers(0, 2**32))
def test_steps_at_the_bounds_are_never_outside(lower, ratio, seed):
    upper = lower * ratio
    q = (upper - lower) / 3
    domain = tune.quniform(lower, upper, q)
    for n in range(5):
        assert lower <= domain.draw(suggestion_generator(seed, n)) <= upper


def test_multiples_are_those_of_the_decimal_as_written():
    assert tune.quniform(0, 0.3, 0.1).values() == [0.0, 0.1, 0.2, 0.3]
    assert tune.quniform(0.05, 0.34, 0.1).values() == [0.1, 0.2, 0.3]
    assert tune.qrandint(0, 10, 5).values() == range(0, 11, 5)
    assert list(tune.qrandint(1, 9, 3).values()) == [3, 6, 9]
    assert list(tune.qrandint(-5, 5, 4).values()) == [-4, 0, 4]
    assert list(tune.qrandint(1, 4).values()) == list(tune.qrandint(1, 4, 1).values()) == [1, 2, 3]
    assert list(tune.qlograndint(8, 32, 8).values()) == [8, 16, 24, 32]
    assert list(tune.lograndint(1, 4).values()) == [1, 2, 3]
    assert tune.randint(0, 2**63).draw(suggestion_generator(0, 0)) >= 0
    domain = tune.quniform(0, 0.3, 0.1)
    assert domain.contains(0.1 * 3)  # a point that a user computed
    assert not domain.contains(0.25)
    assert not domain.contains(0.4)
    assert not domain.contains(math.nan)
    assert not domain.contains(10**400)
    assert not tune.uniform(0, 1).contains(10**400) and not tune.randn().contains(10**400)


def draws(domain, count=4000):
    rng = np.random.default_rng(0)
    return np.array([domain.draw(rng) for _ in range(count)])


def test_each_multiple_is_as_likely_the_ends_too():
    values, counts = np.unique(draws(tune.quniform(0, 0.3, 0.1)), return_counts=True)
    assert values.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert counts == pytest.approx([1000] * 4, rel=0.1)
    values, counts = np.unique(draws(tune.qrandint(0, 9, 3)), return_counts=True)
    assert values.tolist() == [0, 3, 6, 9]
    assert counts == pytest.approx([1000] * 4, rel=0.1)


@pytest.mark.parametrize(
    "domain",
    [
        tune.loguniform(1e-4, 1),
        tune.qloguniform(1e-4, 1, 1e-6),
        tune.lograndint(1000, 10**7),
        tune.qlograndint(1000, 10**7, 2),
    ],
    ids=str,
)
def test_logarithms_are_uniform(domain):
    low, high = math.log(domain.lower), math.log(domain.upper)
    shares = (np.log(draws(domain)) - low) / (high - low)
    # Kolmogorov and Smirnov: the largest distance between the two distribution functions, at 1%.
    distance = np.abs(np.sort(shares) - np.arange(1, 4001) / 4000).max()
    assert distance < 1.63 / math.sqrt(4000)


def test_normal_has_mean_and_deviation():
    values = draws(tune.randn(3, 0.5))
    assert values.mean() == pytest.approx(3, abs=0.03)
    assert values.std() == pytest.approx(0.5, rel=0.05)
    steps = draws(tune.qrandn(0, 1, 0.5))
    assert set(np.unique(steps % 0.5)) == {0.0}
    assert steps.std() == pytest.approx(math.sqrt(1 + 0.5**2 / 12), rel=0.05)
    assert tune.randn().spelling == ("randn", [0.0, 1.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tune.uniform(1, 0.1), ["uniform(1", "lower bound 1.0", "upper bound 0.1"]),
        (lambda: tune.uniform(1, 1), ["not below"]),
        (lambda: tune.uniform("a", 1), ["'a'", "finite number"]),
        (lambda: tune.uniform(float("-inf"), 0), ["-inf", "finite"]),
        (lambda: tune.uniform(True, 2), ["True"]),
        (lambda: tune.loguniform(0, 1), ["loguniform(0", "logarithm", "above 0"]),
        (lambda: tune.randint(1.5, 3), ["1.5", "whole number"]),
        (lambda: tune.randint(3, 3), ["randint(3, 3)", "excluded"]),
        (lambda: tune.randint(0, 2**70), ["does not fit in 64 bits"]),
        (lambda: tune.choice([]), ["choice([])", "at least one"]),
        (lambda: tune.choice("abc"), ["'abc'", "list"]),
        (lambda: tune.grid_search([]), ["grid_search([])"]),
        (lambda: tune.sample_from(3), ["sample_from()", "function", "not 3"]),
        (lambda: Space.of([1]), ["[1]", "dictionary"]),
        (lambda: tune.quniform(0, 1, 0), ["quniform(0.0, 1.0, 0", "q=0 ", "above 0"]),
        (lambda: tune.quniform(0, 1, float("nan")), ["q nan", "finite"]),
        (lambda: tune.quniform(0, 1, 2), ["q=2.0", "larger than the range of 1.0"]),
        (lambda: tune.quniform(0, 1, 1e-300), ["too small", "leave q out"]),
        (lambda: tune.qloguniform(0.1, 1, "x"), ["'x'"]),
        (lambda: tune.qrandint(1, 5, 1.5), ["q 1.5", "whole number"]),
        (lambda: tune.qrandint(1, 5, 8), ["larger than the range of 4"]),
        (lambda: tune.lograndint(0, 5), ["lograndint(0, 5)", "logarithm"]),
        (lambda: tune.randn(0, 0), ["randn(0.0, 0.0)", "deviation"]),
        (lambda: tune.randn(float("nan")), ["nan", "finite"]),
        (lambda: tune.qrandn(0, 1, 0), ["q=0"]),
    ],
)
def test_a_mistake_is_named_with_its_value(make, words):
    refused(make, *words)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (random.uniform, ["uniform", "random generator", "tune.uniform(lower, upper)"]),
        (random.Random(0).randint, ["tune.randint(lower, upper)"]),
        (np.random.uniform, ["tune.uniform(lower, upper)"]),
        (np.random.default_rng(0).normal, ["tune.randn(mean, sd)", "sample_from"]),
        (tune.uniform, ["tune.uniform was not called", "tune.uniform(...)"]),
        (tune.grid_search, ["tune.grid_search(...)"]),
        ({"eval": "spec.config.a * 2"}, ["tune.sample_from(lambda spec: spec.config.a * 2)"]),
        ({1, tune.uniform(0, 1)}, ["a set can't contain domains"]),
        ((tune.uniform(0, 1),), ["a tuple can't contain domains"]),
    ],
)
def test_what_was_meant_as_a_domain_is_named_with_its_key(value, words):
    for space in ({"net": {"lr": value}}, {"net": tune.choice([{"lr": value}])}):
        refused(lambda space=space: Space.of(space), "net/lr: ", *words)


def test_a_distribution_of_scipy_is_named():
    stats = pytest.importorskip("scipy.stats")
    with pytest.raises(SpaceError, match=r"^lr: .*scipy\.stats.*tune\.loguniform\(lower, upper\)"):
        Space.of({"lr": stats.loguniform(1e-4, 1)})
    with pytest.raises(SpaceError, match="sample_from"):
        Space.of({"lr": stats.beta(1, 2)})


def test_a_domain_of_another_library_is_named():
    optuna = pytest.importorskip("optuna")
    with pytest.raises(SpaceError, match=r"^lr: optuna\.distributions.*tune\.uniform\(low, high\)"):
        Space.of({"lr": optuna.distributions.FloatDistribution(0, 1)})


def test_an_expression_of_hyperopts_is_refused_and_its_searcher_named(fit):
    hp = pytest.importorskip("hyperopt").hp
    for space, name in (
        ({"net": {"lr": hp.uniform("lr", 0, 1)}}, "net/lr"),
        (hp.choice("net", [{"lr": 1}]), "param_space"),
    ):
        with pytest.raises(SpaceError, match=rf"^{name}: .*search_alg=HyperOptSearch\(space\)"):
            fit(lambda config: {"loss": 0}, space, metric="loss")


def test_domains_are_changed_and_drawn_from_as_rays_are():
    assert tune.uniform(1, 10).quantized(2) == tune.quniform(1, 10, 2)
    assert tune.uniform(1, 10).loguniform() == tune.loguniform(1, 10)
    assert tune.lograndint(1, 10).quantized(3).uniform() == tune.qrandint(1, 10, 3)
    assert tune.randint(1, 10).loguniform() == tune.lograndint(1, 10)
    assert tune.randn(1, 2).quantized(0.5) == tune.qrandn(1, 2, 0.5)
    assert tune.choice([1, 2]).uniform() == tune.choice([1, 2])
    assert tune.choice([1, 2]).grid() == tune.grid_search([1, 2])
    assert len(tune.choice("ab".split())) == 1
    assert 0 <= tune.uniform(0, 1).sample() < 1
    assert tune.randint(0, 10**9).sample(size=3, random_state=7) == tune.randint(0, 10**9).sample(
        size=3, random_state=np.random.default_rng(7)
    )
    with pytest.raises(AttributeError, match=r"tune\.function is not here.*sample_from"):
        tune.function  # noqa: B018


def test_categories_are_told_apart_by_type():
    assert tune.choice([True, False]).contains(True)
    assert not tune.choice([True, False]).contains(1)
    assert tune.choice([1, 1.0, True, 1]).cardinality == 3
    found = Space.of({"a": tune.choice([1.0, 1])}).choices({"a": 1})
    assert type(found["a"]) is int
    array = np.ones(2)
    assert tune.choice([np.zeros(2), array, "x"]).contains(np.ones(2))
    assert tune.choice([array, "x"]).contains("x")
    assert tune.choice([math.nan]).contains(float("nan"))


def test_equal_categories_count_once():
    assert tune.choice([{1}, {1}, frozenset({1}), {2}]).cardinality == 3
    assert tune.choice([Path("a"), Path("a"), "a"]).values() == [Path("a"), "a"]
    assert tune.choice([range(3), "x", range(3)]).values() == [range(3), "x"]
    assert tune.choice([np.zeros(2), np.ones(2), np.zeros(2), np.zeros(3)]).cardinality == 3
    assert tune.choice([{"a": np.zeros(2)}, object(), object()]).cardinality == 3


def test_equal_tensors_count_once():
    torch = pytest.importorskip("torch")
    assert tune.choice([torch.zeros(2), torch.zeros(3), torch.zeros(2)]).cardinality == 2


def test_a_choice_between_domains_is_drawn_through():
    space = Space.of({"lr": tune.choice([tune.loguniform(1e-4, 1e-3), 0, tune.uniform(1, 2)])})
    assert [parameter.name for parameter in space.parameters] == ["lr", "lr[0]", "lr[2]"]
    found = [space.configuration(0, suggestion_generator(0, n)) for n in range(30)]
    assert {(config["lr"] > 0) + (config["lr"] > 0.5) for config in found} == {0, 1, 2}
    assert all(space.allows(config) for config in found)
    assert not space.allows({"lr": 0.5})


def test_a_value_in_a_list_varies_by_the_name_of_the_list():
    space = Space.of(
        {"a": {"list": [1, tune.uniform(0, 1), {"b": tune.randn()}]}, "constant": {"x": [1, (2, 3)]}}
    )
    assert space.varied == {"a/list"}


@given(st.integers(0, 2**33), st.integers(0, 2**33), st.integers(0, 2))
@example(0, 0, 0)
@example(2**32 - 1, 2**32 - 1, 0)
@example(7, 511, 0)
def test_a_suggestion_draws_what_numpy_draws_by_its_seed_and_number(seed, index, redraw):
    entropy = (seed, index, redraw) if redraw else (seed, index)
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
    drawn = suggestion_generator(seed, index, redraw)
    assert drawn.bit_generator.state == expected.bit_generator.state
    assert drawn.random() == expected.random()
