from trainkit.runtime.api import get_runtime_context as get_runtime_context
from trainkit.runtime.context import RuntimeContext as RuntimeContext
