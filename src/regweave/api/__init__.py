"""Public functions of the package, which the command line calls too."""
