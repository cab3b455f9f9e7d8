"""WebShop: buying the product that an instruction asks for."""
