"""Inputs of the four systems: generated, or fetched and checked."""
