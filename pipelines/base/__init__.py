"""What every room stands on: errors, progress, time, calibration, geometry."""
