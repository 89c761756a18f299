"""Measurements of single operations beside the vendor libraries and torch.compile."""
