"""Hamiltonians as KPM sees them."""
