"""Commands about machines: devices, profiles, predictions and clusters, a module each."""
