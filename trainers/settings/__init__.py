"""Settings: frozen dataclasses whose values are checked by the types of their fields."""

from trainers.settings.check import (
    AtLeastOne,
    ConfigError,
    Count,
    Decay,
    FolderName,
    Fraction,
    NotNegative,
    Positive,
    Seed,
    Share,
    Text,
    check_fields,
    checked,
    config_errors,
)

__all__ = [
    "AtLeastOne",
    "ConfigError",
    "Count",
    "Decay",
    "FolderName",
    "Fraction",
    "NotNegative",
    "Positive",
    "Seed",
    "Share",
    "Text",
    "check_fields",
    "checked",
    "config_errors",
]
