"""Profiles (`xplane.pb`) read and written, measured times compared with predicted ones, and the model calibrated."""
