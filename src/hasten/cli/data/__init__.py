"""Data: inspect, check and fetch (inspect.py); make features and data (make.py)."""
