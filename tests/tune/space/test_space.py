"""Domains and the configurations drawn from them."""

from __future__ import annotations

import collections
import dataclasses
import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.tune.search import BasicVariantGenerator, create_searcher
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import complete, decode_config, encode_config, holds_opaque


def suggestions(param_space: dict, *, seed: int = 0, num_samples: int = 1, **arguments) -> list[dict]:
    searcher = BasicVariantGenerator(**arguments)
    searcher.begin(Space.of(param_space), metric=None, mode=None, num_samples=num_samples, seed=seed)
    found = []
    while (config := searcher.suggest(f"t{len(found)}")) != searcher.FINISHED:
        found.append(config)
    return found


def test_a_grid_is_a_product_repeated_num_samples_times():
    space = {
        "a": tune.grid_search([1, 2]),
        "b": {"c": tune.grid_search(["x", "y", "z"])},
        "d": tune.uniform(0, 1),
        "e": "constant",
    }
    found = suggestions(space, num_samples=2)
    pairs = [(config["a"], config["b"]["c"]) for config in found]
    assert pairs == [(a, c) for a in (1, 2) for c in "xyz"] * 2
    assert len({config["d"] for config in found}) == 12
    assert all(config["e"] == "constant" for config in found)


def refused(make, *words):
    """Assert that a mistake is refused, with all of these words."""
    with pytest.raises(SpaceError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("content", [True, {"a": 1}, "ab", []])
def test_rays_spelling_of_a_grid_needs_a_list(content):
    with pytest.raises(SpaceError, match=r"net/a: grid_search\("):
        Space.of({"net": {"a": {"grid_search": content}}})


@pytest.mark.parametrize("leaf", [tune.uniform(0, 1), [tune.grid_search([1])], tune.sample_from(dict)])
def test_sample_from_returns_values_and_no_domains(leaf):
    with pytest.raises(SpaceError, match=r"sample_from returned .* contains a domain"):
        suggestions({"a": tune.sample_from(lambda spec: leaf)})


def test_suggestion_n_depends_on_the_seed_and_n_alone():
    space = {"a": tune.uniform(0, 1), "b": tune.choice(range(100)), "c": tune.loguniform(1e-6, 1)}
    ten, three = suggestions(space, num_samples=10), suggestions(space, num_samples=3)
    assert ten[:3] == three
    assert suggestions(space, seed=1, num_samples=3) != three
    assert suggestions(space, seed=1, random_state=0, num_samples=3) == three


def test_configurations_share_no_containers():
    first, second = suggestions({"a": {"b": [1]}}, num_samples=2)
    first["a"]["b"].append(2)
    assert second == {"a": {"b": [1]}}


def test_sample_from_sees_the_other_values_in_any_order():
    space = {
        "double": tune.sample_from(lambda spec: spec.config.width * 2),
        "quadruple": tune.sample_from(lambda spec: spec["config"]["double"] * 2),
        "short": tune.sample_from(lambda spec: spec.net.depth + len(spec.config.net)),
        "width": tune.randint(1, 100),
        "net": {"depth": tune.randint(1, 9), "same": tune.sample_from(lambda spec: spec.config.net.depth)},
    }
    (config,) = suggestions(space)
    assert config["double"] == 2 * config["width"]
    assert config["quadruple"] == 4 * config["width"]
    assert config["net"]["same"] == config["net"]["depth"]
    assert config["short"] == config["net"]["depth"] + 2
    assert list(config) == list(space)


def test_sample_from_that_needs_itself_is_refused():
    space = {
        "a": tune.sample_from(lambda spec: spec.config.b),
        "b": tune.sample_from(lambda spec: spec.config.a),
    }
    with pytest.raises(SpaceError, match="a -> b -> a"):
        suggestions(space)
    with pytest.raises(SpaceError, match=r"'widht'.*width"):
        suggestions({"width": 3, "a": tune.sample_from(lambda spec: spec.config.widht)})


def test_sample_from_with_global_generators_repeats_and_leaves_them_alone():
    space = {"a": tune.sample_from(lambda spec: (random.random(), float(np.random.rand())))}
    random.seed(3)
    np.random.seed(3)
    expected = random.random(), np.random.rand()
    random.seed(3)
    np.random.seed(3)
    first = suggestions(space, num_samples=2)
    assert (random.random(), np.random.rand()) == expected
    assert suggestions(space, num_samples=2) == first
    assert first[0] != first[1]


def test_points_come_first_and_count_as_samples():
    space = {"a": tune.uniform(0, 1), "net": {"width": tune.choice([8, 16])}, "g": tune.grid_search([1, 2])}
    points = [{"a": 0.25, "net": {"width": 16}, "g": 2}, {"net/width": 8}]
    found = suggestions(space, num_samples=3, points_to_evaluate=points)
    assert len(found) == 1 + 2 + 2
    assert found[0] == {"a": 0.25, "net": {"width": 16}, "g": 2}
    assert [(config["net"]["width"], config["g"]) for config in found[1:3]] == [(8, 1), (8, 2)]
    with pytest.raises(SpaceError, match=r"widht.*net/width"):
        suggestions(space, points_to_evaluate=[{"net": {"widht": 8}}])


def test_sample_from_may_use_the_same_key_elsewhere_and_places_of_a_list():
    lr = tune.sample_from(lambda spec: spec.config.b.lr + 1)
    (config,) = suggestions({"a": {"lr": lr}, "b": {"lr": tune.sample_from(lambda spec: 1)}})
    assert config == {"a": {"lr": 2}, "b": {"lr": 1}}
    space = {
        "last": tune.sample_from(lambda spec: spec.config.a[-1] + 1),
        "all": tune.sample_from(lambda spec: spec.config.a),
        "some": tune.sample_from(lambda spec: spec.config.a[:2]),
        "inner": tune.sample_from(lambda spec: spec.config.a[2].x),
        "a": [
            5,
            tune.sample_from(lambda spec: spec.config.a[0] * 2),
            {"x": 7},
            tune.sample_from(lambda spec: 3),
        ],
    }
    (config,) = suggestions(space)
    a = [5, 10, {"x": 7}, 3]
    assert config == {"last": 4, "all": a, "some": [5, 10], "inner": 7, "a": a}
    with pytest.raises(SpaceError, match=r"depend on each other"):
        suggestions({"a": [tune.sample_from(lambda spec: spec.config.a[0])]})


class Plain:
    pass


def test_what_text_cannot_hold_is_marked_and_rebuilt_by_replay():
    space = {"cls": tune.choice([Plain, dict]), "f": tune.sample_from(lambda spec: spec.config.cls), "n": 1}
    assert holds_opaque(decode_config(encode_config(Space.of(space).tree)))
    (config,) = suggestions(space, seed=2)
    stored = decode_config(encode_config(config))
    assert holds_opaque(stored)
    assert complete(stored, suggestions(space, seed=2)[0]) == config
    assert holds_opaque(complete(stored, {"cls": list, "f": list, "n": 1}))


# --- values of the user's own kinds ---------------------------------------------------------------


class Config(collections.UserDict):
    """As a DictConfig is: a mapping with attributes, and no dictionary."""

    def __getattr__(self, name):
        try:
            return self.__dict__["data"][name]
        except KeyError:
            raise AttributeError(name) from None


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Layers(list):
    pass


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    a: object = None


PLAIN_VALUES = st.integers(0, 9) | st.text("ab", max_size=3) | st.none() | st.booleans() | st.floats(0, 1)
DICTS = st.dictionaries(st.text("abcd", min_size=1, max_size=2), PLAIN_VALUES, max_size=3)
VALUES = st.recursive(
    st.one_of(
        PLAIN_VALUES,
        DICTS,
        DICTS.map(Config),
        DICTS.map(Attributes),
        DICTS.map(collections.OrderedDict),
        DICTS.map(lambda given: collections.defaultdict(int, given)),
        st.lists(PLAIN_VALUES, max_size=3).map(Layers),
        st.builds(Pair, PLAIN_VALUES, PLAIN_VALUES),
        st.builds(Record, DICTS),
        st.frozensets(st.integers(0, 9), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(Layers),
        st.dictionaries(st.text("abcd", min_size=1, max_size=2), inner, max_size=3),
        st.dictionaries(st.text("abcd", min_size=1, max_size=2), inner, max_size=3).map(Config),
        st.tuples(inner, inner),
    ),
    max_leaves=6,
)


def kinds(value):
    """All types in a value, in its order."""
    inner = value.values() if isinstance(value, (dict, Config)) else value
    holds = isinstance(value, (dict, Config, list, tuple))
    return [type(value), *([kinds(each) for each in inner] if holds else ())]


@given(value=VALUES, searcher=st.sampled_from(["random", "optuna"]), place=st.sampled_from("kgc"))
@settings(deadline=None)
def test_values_arrive_as_they_were_given(value, searcher, place):
    placed = {"k": value, "g": tune.grid_search([value]), "c": tune.choice([value])}[place]
    assume(not (searcher == "optuna" and place == "g"))
    space = Space.of(
        {"x": tune.uniform(0, 1), "value": placed, "in": {"deep": [placed]} if place == "k" else 0}
    )
    made = create_searcher(searcher)
    made.begin(space, metric="loss", mode="min", num_samples=2, seed=0)
    config = TrialSource(made, space).propose("t0")
    found = [config["value"], *([config["in"]["deep"][0]] if place == "k" else [])]
    for each in found:
        assert each == value and kinds(each) == kinds(value)


@given(value=VALUES)
@settings(deadline=None)
def test_a_container_is_stored_by_its_content(value):
    text = encode_config({"v": value})
    stored = decode_config(text)
    assert encode_config(stored) == text
    whole = complete(stored, {"v": value})["v"]
    assert whole == value and kinds(whole) == kinds(value)
    own = encode_config(collections.OrderedDict(lr=1, l=Layers([Config(a=2)]), n=Attributes({3: 4})))
    assert own == encode_config({"lr": 1, "l": [{"a": 2}], "n": {3: 4}})


@pytest.mark.parametrize("place", [lambda value: value, lambda value: tune.choice([value])])
def test_a_container_is_of_one_trial(place):
    one, other = suggestions({"o": place(Attributes(a=1)), "x": tune.grid_search([1, 2])})
    one["o"]["a"] = 2
    assert type(other["o"]) is Attributes and other["o"] == {"a": 1}


def test_what_holds_a_domain_becomes_a_plain_container():
    (config,) = suggestions(
        {"a": Attributes(lr=tune.uniform(0, 1), n=Attributes(m=1)), "b": Layers([tune.uniform(0, 1)])}
    )
    assert (type(config["a"]), type(config["b"]), type(config["a"]["n"])) == (dict, list, Attributes)
    (config,) = suggestions({"a": Config({"grid_search": [1]})})
    assert config == {"a": 1}
    with pytest.raises(SpaceError, match="random generator"):
        Space.of({"a": Attributes(lr=random.uniform)})
