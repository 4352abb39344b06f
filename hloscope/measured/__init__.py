"""What was measured beside what was predicted, operation by operation, and what of the cost model that settles."""
