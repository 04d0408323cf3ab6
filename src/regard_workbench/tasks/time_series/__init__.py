"""Time series: CSV files to columns, columns to parts and windows, and pictures of windows and forecasts."""
