"""Commands that look at models and plans, a module each."""
