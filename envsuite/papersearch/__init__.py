"""PaperSearch: finding the papers that a research question asks for."""
