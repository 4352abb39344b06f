"""Rules, contracts, and the comparison of two programs."""
