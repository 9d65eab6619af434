"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# The first call of a compiled kernel takes seconds, which says nothing about the property.
settings.register_profile("spectile", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spectile")
