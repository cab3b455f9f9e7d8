"""Parts of the pages on which people play environments in a browser: address, server, visitors."""
