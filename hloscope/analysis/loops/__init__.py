"""How often loops run."""

from hloscope.analysis.loops.trips import TripCount, trip_count

__all__ = ["TripCount", "trip_count"]
