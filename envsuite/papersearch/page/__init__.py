"""The search for papers as a web page, in which people do the tasks of agents."""
