"""Commands of the command line, a module each: arguments and action."""
