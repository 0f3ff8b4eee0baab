"""Private names of scikit-learn that the searches use, and differences between its versions.

With these names the searches run scikit-learn's own code instead of a copy.
"""

from __future__ import annotations

import inspect

from sklearn.base import _fit_context as fit_context
from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.metrics._scorer import _MultimetricScorer as MultimetricScorer
from sklearn.metrics._scorer import _PassthroughScorer as PassthroughScorer
from sklearn.model_selection._search import BaseSearchCV
from sklearn.model_selection._search_successive_halving import (
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
)
from sklearn.model_selection._validation import _fit_and_score as fit_and_score
from sklearn.model_selection._validation import _insert_error_scores as insert_error_scores
from sklearn.model_selection._validation import _score as score
from sklearn.model_selection._validation import (
    _warn_or_raise_about_fit_failures as warn_or_raise_about_fit_failures,
)
from sklearn.utils._metadata_requests import _routing_enabled as routing_enabled
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.validation import _check_method_params as check_method_params

__all__ = [
    "HAS_CALLBACKS",
    "BaseScorer",
    "BaseSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "MultimetricScorer",
    "PassthroughScorer",
    "check_method_params",
    "fit_and_score",
    "fit_context",
    "insert_error_scores",
    "routing_enabled",
    "safe_split",
    "score",
    "warn_or_raise_about_fit_failures",
]

HAS_CALLBACKS = "callback_ctx" in inspect.signature(fit_and_score).parameters
"""True since scikit-learn 1.9, in which a fit has callbacks."""
