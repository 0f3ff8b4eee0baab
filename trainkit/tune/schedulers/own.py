"""What a scheduler of one's own must be like: checked when it is defined and when it is handed over."""

from __future__ import annotations

import inspect

from trainkit.errors import ConfigError

_RAYS_ARGUMENTS = ("controller", "tune_controller", "trial_runner", "runner")
"""By which names, over the years, methods of Ray's schedulers take what runs the trials."""

_RAYS_METHODS = {"on_trial_result": "decide", "on_trial_remove": "on_trial_complete"}
"""Methods of Ray's schedulers that are never called here, with what is called in their place."""

_WHY = "a scheduler is told of trials by their ids, and sees nothing of what runs them"


def check_methods(cls: type, base: type) -> None:
    """Check that the methods which `cls` redefines of `base` can be called as they will be.

    Raises:
        ConfigError: one has other arguments, such as those of Ray's, or a name that is never called.
    """
    # What its other bases redefine was checked when they were defined; a mixin's was not.
    fresh = [each for each in cls.__mro__ if each is cls or not issubclass(each, base)]
    defined = {name: value for each in reversed(fresh) for name, value in vars(each).items()}
    for old, new in _RAYS_METHODS.items():
        # With the new one defined too, the old name is a method of the user's own.
        if old in defined and not {new, "on_result"} & defined.keys():
            raise ConfigError(
                f"{cls.__name__}.{old}() is a method of Ray's schedulers that is never called here: define "
                f"{new}{_arguments(vars(base)[new])}; {_WHY}"
            )
    for name, value in vars(base).items():
        if inspect.isfunction(value) and not name.startswith("_") and inspect.isfunction(defined.get(name)):
            _check_method(cls, name, defined[name], value)


def _check_method(cls: type, name: str, given: object, ours: object) -> None:
    signature, expected = inspect.signature(given), inspect.signature(ours)  # type: ignore[arg-type]
    rays = next((each for each in signature.parameters if each in _RAYS_ARGUMENTS), None)
    by_name = [each.name for each in expected.parameters.values() if each.kind is each.KEYWORD_ONLY]
    try:
        signature.bind(*range(len(expected.parameters) - len(by_name)), **dict.fromkeys(by_name))
    except TypeError as error:
        problem = f"can't be called as it will be ({error})"
    else:
        if rays is None:
            return
        problem = f"is never given a {rays}"
    raise ConfigError(
        f"{cls.__name__}.{name}{_arguments(given)} {problem}: define {name}{_arguments(ours)}"
        + (f"; {_WHY}, unlike Ray's" if rays is not None else "")
    )


def _arguments(function: object) -> str:
    """Such as '(self, pending, paused=(), *, new=False)'."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(plain))


def check_made(scheduler: object) -> None:
    """Check that the constructor of a scheduler has called that of its base.

    Raises:
        ConfigError: it has not.
    """
    if not hasattr(scheduler, "time_attr"):
        name = type(scheduler).__name__
        raise ConfigError(
            f"the scheduler {name} was made without its base: let {name}.__init__() begin with "
            "super().__init__(), which takes time_attr, metric and mode"
        )
