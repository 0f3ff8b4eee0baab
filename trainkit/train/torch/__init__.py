"""Users' training functions on a group of workers, under the names of Ray Train."""

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
