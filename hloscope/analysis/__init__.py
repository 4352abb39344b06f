"""The facts about a parsed HLO module. This stage knows no chips and does not import JAX."""
