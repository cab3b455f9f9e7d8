"""Modules that a vLLM server imports; they need torch, safetensors and vLLM, and nothing else of this package.

The server's interpreter may have another version of torch than the trainer's. So this folder alone goes on its path,
and the modules have names of their own there.
"""
