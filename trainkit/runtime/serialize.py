"""Serialization of values to pickles with out-of-band buffers, and of
handles, which are sent as descriptors.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import mmap
import pickle
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import cloudpickle

from trainkit.errors import ObjectLostError, SerializationError, TaskError, TrainkitError

_DEPTH = 8
_MOST_TRIES = 500


def find_unpicklable(value: Any, name: str, dump: Callable[[Any], object]) -> tuple[str | None, Any]:
    """Return the path and the object of the deepest part of `value` that `dump` can't pickle.

    Args:
        value: object that could not be pickled.
        name: the user's name for the object, with which the path begins.
        dump: function that raises if its argument can't be pickled.

    Returns:
        A pair such as ("config['lock']", <lock>), or (None, value) if each part can be pickled separately.
    """
    tries = 0

    def refused(part: Any) -> bool:
        nonlocal tries
        tries += 1
        try:
            dump(part)
        except Exception:
            return True
        return False

    path, culprit, seen = name, value, {id(value)}
    for _ in range(_DEPTH):
        for label, part in _parts(culprit, path):
            if id(part) in seen or tries >= _MOST_TRIES:
                continue
            seen.add(id(part))
            if refused(part):
                path, culprit = label, part
                break
        else:
            break
    return (path, culprit) if path != name else (None, value)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, types.FunctionType):
        code = value.__code__
        for variable, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}: variable {variable!r} of the enclosing scope", cell.cell_contents
            except ValueError:  # the cell is still empty, so it contributes nothing to the pickle
                continue
        for variable in code.co_names:
            if variable in value.__globals__:
                yield f"{path}: global variable {variable!r}", value.__globals__[variable]
    elif isinstance(value, types.MethodType):
        yield f"{path}: the object it is bound to", value.__self__
    elif isinstance(value, type):
        for attribute, item in vars(value).items():
            if not attribute.startswith("__") or attribute == "__init__":
                yield f"{path}.{attribute}", item
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # the value is a functools.partial
        yield f"{path}: the function of the partial", value.func
        yield f"{path}: the arguments of the partial", (value.args, value.keywords)
    elif hasattr(value, "__dict__"):
        for attribute, item in vars(value).items():
            yield f"{path}.{attribute}", item


PROTOCOL = 5


class Handle(Protocol):
    """Object that is sent to another process as an open descriptor.

    Attributes:
        kind: number of one byte from which the receiver knows how to use the descriptor.
    """

    @property
    def kind(self) -> int: ...

    def open_fd(self) -> int:
        """Return a new descriptor for one receiver. The caller closes the descriptor after sending it."""


class LostHandle:
    """Placeholder for a handle that arrived when this process could not open more descriptors.

    Args:
        kind: kind of the handle.
        why: reason as a sentence for the user.
    """

    def __init__(self, kind: int, why: str) -> None:
        self.kind = kind
        self.why = why

    def open_fd(self) -> int:
        raise ObjectLostError(self.why)


def present(handle: Handle) -> Handle:
    """Return `handle`; raise ObjectLostError if it is a LostHandle."""
    if isinstance(handle, LostHandle):
        raise ObjectLostError(handle.why)
    return handle


class Packed:
    """Packed value that can be sent, written to a memory segment, or rebuilt any number of times.

    Attributes:
        payload: the pickle.
        buffers: out-of-band buffers of the pickle in order. Each buffer is a flat view of bytes.
        handles: handles that the pickle refers to by index.
        stored: True if the value is in shared memory. The first handle is then the memory segment, and the
            payload contains only the positions of the value's parts.
        writable: True if a part of the rebuilt value is writable, so that rebuilt values must not share
            memory.
    """

    __slots__ = ("buffers", "handles", "payload", "stored", "writable")

    def __init__(
        self,
        payload: Any,
        buffers: Sequence[Any] = (),
        handles: Sequence[Handle] = (),
        stored: bool = False,
        writable: bool = False,
    ) -> None:
        self.payload = payload
        self.buffers = buffers
        self.handles = handles
        self.stored = stored
        self.writable = writable

    def owned(self) -> Packed:
        """Return the value with copies of its buffers, since the buffers' owner may change them later."""
        if not self.buffers:
            return self
        return Packed(self.payload, [bytes(buffer) for buffer in self.buffers], self.handles, self.stored)

    @property
    def size_bytes(self) -> int:
        """Size of a copy of the value, in bytes."""
        return len(self.payload) + sum(len(buffer) for buffer in self.buffers)


ATOMS = frozenset({int, float, bool, str, bytes, type(None)})

NUMBERS = frozenset({int, float, bool, type(None)})

SHORT = 1024
"""Maximum number of characters or bytes of a small string."""

_PLAIN_DEPTH = 4
_CONTAINERS = frozenset({tuple, list, dict})


def is_small(value: Any, depth: int = _PLAIN_DEPTH) -> bool:
    """Return True if a value consists of built-in types and is so small that a copy costs almost nothing."""
    kind = type(value)
    if kind in NUMBERS:
        return True
    if kind is str or kind is bytes:
        return len(value) <= SHORT
    for item in (items := _short_items(value, depth)) or ():
        if type(item) not in NUMBERS and not is_small(item, depth - 1):
            return False
    return items is not None


def is_plain(value: Any, depth: int = _PLAIN_DEPTH) -> bool:
    """Return True for None, numbers, strings, bytes, and short containers of these, which the
    fast C pickler can handle.
    """
    if type(value) in ATOMS:
        return True
    for item in (items := _short_items(value, depth)) or ():
        if type(item) not in ATOMS and not is_plain(item, depth - 1):
            return False
    return items is not None


def lasting(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return small arguments in a form that later changes don't affect: a tuple of immutable values, or a
    pickle.

    Return None for any other arguments.
    """
    for value in args:
        if type(value) not in NUMBERS and not (type(value) is str and len(value) <= SHORT):
            break
    else:
        if not kwargs:
            return args
    return pickle.dumps((args, kwargs), PROTOCOL) if is_small(args) and is_small(kwargs) else None


def _short_items(value: Any, depth: int) -> Collection[Any] | None:
    if not depth or type(value) not in _CONTAINERS or len(value) > 16:
        return None
    if isinstance(value, dict):
        return value.values() if {*map(type, value)} <= {str} else None
    return value  # type: ignore[no-any-return]


def pack(value: Any, what: str = "value") -> Packed:
    """Pickle `value`.

    Raises:
        SerializationError: a part of `value` can't be pickled; the message names `what` and the part.
    """
    if is_plain(value):
        return Packed(pickle.dumps(value, PROTOCOL))
    _register_types()
    file = io.BytesIO()
    buffers: list[Any] = []
    pickler = _Pickler(file, buffers)
    try:
        pickler.dump(value)
    except Exception as error:
        raise SerializationError(explain(value, what, error)) from error
    return Packed(file.getvalue(), buffers, pickler.handles, writable=pickler.writable)


def explain(value: Any, what: str, error: BaseException) -> str:
    """Return a message that names the part of `value` that raised `error` when pickled."""
    path, culprit = find_unpicklable(value, what, lambda part: _Pickler(io.BytesIO(), []).dump(part))
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}"
    where = f"{path.removeprefix(f'{what}: ')} (a {kind})" if path else "it"
    return (
        f"{what} cannot be sent to another process: {where} cannot be pickled ({error}). "
        "Create it inside the function or method that uses it, or leave it out."
    )


class _Decoding(threading.local):
    """Handles of the value that the current thread is rebuilding."""

    handles: Sequence[Handle] = ()


_decoding = _Decoding()


def unpack(packed: Packed) -> Any:
    """Rebuild the value. Each call makes a new value, but buffers in shared memory are shared.

    Raises:
        SerializationError: a class or module of the value can't be imported here, or an object in it can't be
            rebuilt.
    """
    outer = _decoding.handles
    _decoding.handles = packed.handles
    try:
        return pickle.loads(packed.payload, buffers=packed.buffers)
    except ImportError as error:
        raise SerializationError(
            f"a received value needs a module that cannot be imported: {error}. Functions and classes of "
            "importable modules are sent by name, so both processes need the module on sys.path."
        ) from error
    except (TrainkitError, OSError, MemoryError):
        raise
    except Exception as error:
        raise SerializationError(
            f"a received value cannot be unpickled: {type(error).__name__}: {error}. Give the value's class "
            "a __reduce__() that returns the class and its arguments, or send the object's contents."
        ) from error
    finally:
        _decoding.handles = outer


def claim(index: int) -> Handle:
    """Return the handle at `index` of the value being rebuilt.

    The functions that rebuild values from pickles call this function.

    Raises:
        ObjectLostError: this process had no descriptor left when the handle arrived.
    """
    return present(_decoding.handles[index])


def attached(pickler: _Pickler, handle: Handle) -> Any:
    """Reduce a handle for a pickle, so that the receiver gets the handle itself."""
    return claim, (pickler.attach(handle),)


Reducer = Callable[["_Pickler", Any], Any]
_REDUCERS: dict[type, Reducer] = {}


def register(kind: type, reducer: Reducer) -> None:
    """Pickle instances of exactly `kind` with `reducer(pickler, instance)`, whose result has the form of
    `__reduce__`.
    """
    _REDUCERS[kind] = reducer


def deregister(kind: type) -> None:
    """Pickle instances of `kind` in the default way again."""
    _REDUCERS.pop(kind, None)


def rebuilt(
    kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException | None:
    """Return a new exception, made without calling the constructor of its class; None if that fails."""
    try:
        error = _made(kind, args)
        _set_attributes(error, attributes)
        str(error)
    except Exception:
        return None
    return error


def _made(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    # A class derived from TaskError and MemoryError has the `__new__` of TaskError, and Python refuses to
    # call MemoryError's `__new__`.
    combined = issubclass(kind, TaskError) and issubclass(kind, MemoryError)
    error = (BaseException if combined else kind).__new__(kind, *args)
    error.args = args[:2] if isinstance(error, OSError) else args
    built_in = next(
        base for base in kind.__mro__ if base.__module__ == "builtins" and "__init__" in vars(base)
    )
    with contextlib.suppress(TypeError):  # a C constructor sets fields that are not in `__dict__`
        vars(built_in)["__init__"](error, *args)
    return error


def _set_attributes(error: BaseException, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(error, name, value)


def arguments_of(error: BaseException) -> tuple[Any, ...]:
    """Return the constructor's arguments, including arguments that a built-in class removed from `args`."""
    if isinstance(error, OSError) and len(error.args) == 2 and error.filename is not None:
        return (*error.args, error.filename, None, error.filename2)
    return error.args


_FIELDS = {ImportError: ("name", "path"), AttributeError: ("name",), NameError: ("name",)}
"""Attributes that built-in classes keep outside `args` and `__dict__`."""


def attributes_of(error: BaseException) -> dict[str, Any]:
    """Return the state of an exception except its arguments."""
    fields = {
        name: value
        for kind, names in _FIELDS.items()
        if isinstance(error, kind)
        for name in names
        if (value := getattr(error, name, None)) is not None
    }
    state = object.__getstate__(error)  # a class with slots gives a pair of its __dict__ and slots
    slots = state[1] if isinstance(state, tuple) else {}
    own = {
        key: value
        for key, value in error.__dict__.items()
        if key not in ("cause", "remote_traceback", "__notes__") or not isinstance(error, TaskError)
    }
    return {**fields, **slots, **own}


def _reduce_exception(error: BaseException) -> Any:
    kind = type(error)
    maker = next(base for base in kind.__mro__ if "__init__" in vars(base))
    own = any(
        name in vars(base) for base in kind.__mro__ for name in _OWN_WAYS if base.__module__ != "builtins"
    )
    # Dask installs tblib, which registers a reducer for every exception class. The reducer of tblib keeps
    # the cause but loses slots.
    way = getattr(copyreg.dispatch_table.get(kind, _reduce_exception), "__module__", "")
    has_slots = isinstance(object.__getstate__(error), tuple)
    plain = maker.__module__ == "builtins" or way != __name__
    if own or way not in (__name__, "tblib.pickling_support") or (plain and not has_slots):
        return NotImplemented
    # The attributes are set after the exception exists, because they may refer to the exception.
    return _load_exception, (kind, arguments_of(error)), attributes_of(error), None, None, _set_attributes


_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__new__")
"""Methods with which a class defines how its instances are pickled or made."""


def _load_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    try:
        return _made(kind, args)
    except Exception:
        return kind(*args)  # this call raises an error that explains the failure


def _reduce_code(code: types.CodeType) -> Any:
    # cloudpickle 3.1.3 writes "<dynamic-code>" instead of the file name, so tracebacks would lack source
    # lines.
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(
        code.co_filename if isinstance(each, str) and each == "<dynamic-code>" else each for each in arguments
    )


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler of functions and classes that keeps the names of their files, unlike cloudpickle's pickler."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: _reduce_code})


def dumps(value: Any, protocol: int = PROTOCOL) -> bytes:
    """Return a value's pickle, which `pickle.loads` can read in any process."""
    file = io.BytesIO()
    CodePickler(file, protocol=protocol).dump(value)
    return file.getvalue()


class _Pickler(CodePickler):
    def __init__(self, file: io.BytesIO, buffers: list[Any]) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=lambda b: buffers.append(b.raw()))
        self.handles: list[Handle] = []
        self.writable = False

    def attach(self, handle: Handle) -> int:
        """Add `handle` to the value, and return the handle's index for `claim`."""
        self.handles.append(handle)
        return len(self.handles) - 1

    def reducer_override(self, obj: Any) -> Any:
        reducer = _REDUCERS.get(type(obj))
        if reducer is None and _proxies and isinstance(obj, _proxies):
            reducer = _reduce_proxy
        if reducer is not None:
            reduced = reducer(self, obj)
            if reduced is not NotImplemented:
                return reduced
        if isinstance(obj, BaseException) and (reduced := _reduce_exception(obj)) is not NotImplemented:
            return reduced
        return super().reducer_override(obj)


_proxies: tuple[type, ...] = ()
"""Base class of the proxies of `multiprocessing.Manager`, if its module has been imported."""


def _register_types() -> None:
    """Register reducers for types of libraries, such as NumPy's arrays, once a library is imported."""
    global _proxies
    if not _proxies and "multiprocessing.managers" in sys.modules:
        _proxies = (getattr(sys.modules["multiprocessing.managers"], "BaseProxy", type(None)),)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray"):
        _REDUCERS.setdefault(numpy.ndarray, _reduce_array)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        _REDUCERS.setdefault(torch.Tensor, _reduce_tensor)
    starlette = sys.modules.get("starlette.datastructures")
    if starlette is not None and hasattr(starlette, "State"):
        # Starlette's State reads attributes from an inner dictionary, which does not exist yet while a State
        # is rebuilt.
        _REDUCERS.setdefault(starlette.State, lambda _, state: (type(state), (state._state,)))


def _reduce_proxy(_: _Pickler, proxy: Any) -> Any:
    # A worker is not a child of this process, so it does not inherit the authentication key. The key is sent
    # to the worker, as to a spawned child.
    from multiprocessing import context

    before = context.get_spawning_popen()
    context.set_spawning_popen(proxy)
    try:
        function, (*arguments, settings) = proxy.__reduce__()
    finally:
        context.set_spawning_popen(before)
    return function, (*arguments, {**settings, "authkey": bytes(settings["authkey"])})


def _reduce_array(_: _Pickler, array: Any) -> Any:
    import numpy as np

    if array.dtype.hasobject or array.size == 0 or array.dtype.itemsize == 0:
        return NotImplemented
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    flat = np.ascontiguousarray(array.T if fortran else array).reshape(-1)
    raw: Any = flat.view(np.uint8)
    return _load_array, (pickle.PickleBuffer(raw), array.dtype, array.shape, fortran)


def _load_array(buffer: Any, dtype: Any, shape: tuple[int, ...], fortran: bool) -> Any:
    import numpy as np

    flat = np.frombuffer(buffer, dtype=np.uint8).view(dtype)
    array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    array.flags.writeable = False
    return array


def _reduce_tensor(pickler: _Pickler, tensor: Any) -> Any:
    import torch

    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.grad_fn is not None or tensor.__dict__ or tensor.numel() == 0:
        return NotImplemented
    pickler.writable = True
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return _load_tensor, (
        pickle.PickleBuffer(flat.numpy()),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.requires_grad,
    )


def _load_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    # If the memory is a private mapping of this reader, the tensor may use the memory. Any other memory is
    # shared with later readers, so the tensor gets a copy.
    own = buffer if isinstance(getattr(buffer, "obj", None), mmap.mmap) else bytearray(buffer)
    tensor = torch.frombuffer(own, dtype=torch.uint8).view(dtype).reshape(shape)
    return tensor.requires_grad_() if requires_grad else tensor
