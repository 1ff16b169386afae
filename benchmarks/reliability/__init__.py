"""Forecasts against measured peaks, bits against threads, and faults against other libraries."""
