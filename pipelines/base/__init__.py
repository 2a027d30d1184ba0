"""Common tools: errors, progress, time, calibration, geometry."""
