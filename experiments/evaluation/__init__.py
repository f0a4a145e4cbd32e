"""What is measured of forecasts, detections, drives and incidents."""
