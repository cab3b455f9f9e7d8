"""The shop as a web page: a person buys in a browser what an agent buys through tools."""
