"""Reliability checks: memory forecasts, effects of threads and processors, and faults in other libraries."""
