"""The versions of the package and of its predictions, readable from every room."""

__version__ = "0.2.0"

MODEL_VERSION = 1
"""Increases with each change of predictions: steps of two versions are not compared.

A test holds the predicted steps of the fixtures against it.
"""
