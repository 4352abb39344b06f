"""From a parsed HLO module to the facts about it. Knows no chip and imports no JAX."""
