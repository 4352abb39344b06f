"""Changes of sharding as values: thought of, ranked with Shardy, compiled and priced.

`candidates` are made from the typed reason for a collective, `ranking` orders them by Shardy's shardings alone,
`trials` has the best few compiled and compares `figures`; `kept` remembers what came of it.
"""

from hloscope.search.subject import Limits, Subject
from hloscope.search.trials import try_changes

__all__ = ["Limits", "Subject", "try_changes"]
