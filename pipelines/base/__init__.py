"""The ground of every room: errors, progress, time, calibration, geometry."""
