"""Benchmarks of the Python client against a real Manager. They print figures with units and never pass or fail."""
