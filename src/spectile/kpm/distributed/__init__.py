"""KPM on several devices."""
