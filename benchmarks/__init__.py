"""Measurements: parity with the originals, and speed. Each is a module to run; none is imported by the packages."""
