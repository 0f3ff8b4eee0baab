from trainkit.runtime.api import get_runtime_context as get_runtime_context
from trainkit.runtime.calls.context import RuntimeContext as RuntimeContext
