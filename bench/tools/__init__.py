"""Tools that look at the compiler itself: its output and its speed."""
