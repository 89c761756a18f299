"""Training steps through `torch.compile`, as users write them."""
