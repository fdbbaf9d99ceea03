"""Commands about the program itself and its pages."""
