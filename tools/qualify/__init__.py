"""Qualifications that need a GPU: each runs by itself, without pytest, and says on its last line what came out."""
