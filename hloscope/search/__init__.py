"""Changes of sharding: candidates are generated, ranked with Shardy, compiled and priced.

`candidates` generates them from the typed reason for a collective, `ranking` orders them by Shardy's shardings alone,
`trials` compiles the best few and compares `figures`; `trial_cache` caches the results.
"""

from hloscope.search.trial_cache import SearchSubject, TrialLimits
from hloscope.search.trials import try_changes

__all__ = ["SearchSubject", "TrialLimits", "try_changes"]
