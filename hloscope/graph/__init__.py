"""The module as a graph: who calls whom, and where a value goes to and comes from."""

from hloscope.graph.dataflow import Value, consumers, producers
from hloscope.graph.hlo_graph import CallSite, HloGraph, entry_of

__all__ = ["CallSite", "HloGraph", "Value", "consumers", "entry_of", "producers"]
