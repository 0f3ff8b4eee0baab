from typing import Annotated, TypeVar

from trainkit.runtime.api import exit_actor as exit_actor
from trainkit.runtime.api import get_actor as get_actor
from trainkit.runtime.api import method as method
from trainkit.runtime.calls.remote import ActorClass as ActorClass
from trainkit.runtime.calls.remote import ActorHandle as _Handle
from trainkit.runtime.calls.remote import ActorMethod as ActorMethod

T = TypeVar("T")

# A handle is what its class's marked methods make of it; see `trainkit.runtime.calls.typed`.
ActorHandle = Annotated[T, _Handle]
ActorProxy = Annotated[T, _Handle]
