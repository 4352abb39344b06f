"""Changes of sharding: candidates are generated, ranked with Shardy, compiled and priced.

`candidates` are generated from the typed reason for a collective, `ranking` orders them by Shardy's shardings alone,
`trials` compiles the best few and compares `figures`; `kept` caches the results.
"""

from hloscope.search.subject import Limits, Subject
from hloscope.search.trials import try_changes

__all__ = ["Limits", "Subject", "try_changes"]
