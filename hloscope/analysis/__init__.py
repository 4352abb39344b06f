"""From a parsed HLO module to the facts about it. Independent of chips; does not import JAX."""
