"""Panels: the tasks of an evaluation, listed so that anyone can play exactly these."""

from envsuite.evaluation.panels.computing import panel_of
from envsuite.evaluation.panels.files import read_panel, shipped_panel, write_panel
from envsuite.evaluation.panels.panel import Panel, PanelTask

__all__ = ["Panel", "PanelTask", "panel_of", "read_panel", "shipped_panel", "write_panel"]
