"""Training on episodes that older weights have begun, with bounded staleness (docs/asynchronous.md)."""
