"""Mathematics with a Python interpreter as a tool: ``PythonMath-v0``."""
