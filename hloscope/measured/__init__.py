"""Measured times compared with predicted ones, operation by operation, and calibration of the cost model from them."""
