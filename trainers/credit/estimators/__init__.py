"""Credit-assignment methods, one file each.

Importing the package imports every file of it, which enters its methods in :data:`ESTIMATORS`.
"""

from importlib import import_module
from pkgutil import iter_modules

from trainers.credit.estimators.base import ESTIMATORS, Advantage, Calibrating, Estimator, ValueBased, register

__all__ = ["ESTIMATORS", "Advantage", "Calibrating", "Estimator", "ValueBased", "register"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
