"""Real engines and small checkpoints for the tests and the demo. It is not part of the wheel.

What is here starts processes and owns their end: whoever starts an engine through it leaves none behind.
"""
