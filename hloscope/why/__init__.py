"""Reasons for collectives: follows the program's own shardings to every transfer in the compiled module.

The input is an `Analysis` with the other results of its compile; the output is the same analysis with a reason for each
collective (`stage`). HLO text alone needs only `sentences`.
"""
