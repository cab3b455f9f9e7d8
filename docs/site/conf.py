"""Settings of Sphinx for the site; ``python -m docs.site`` assembles the pages first."""

from __future__ import annotations

from docs.site import mathml
from envsuite import __version__

project = "envsuite"
release = version = __version__
copyright = "the authors of envsuite, MIT licence"
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", mathml.__name__]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 6
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"exclude-members": "__init__, __new__"}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "pydata_sphinx_theme"
html_title = "envsuite"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # read by requests, which a page from the disk may not make
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
