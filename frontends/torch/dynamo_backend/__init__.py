"""`torch.compile(backend=\"cuts\")`: guards, fingerprints, dynamic sizes, frozen weights, autograd."""

from .dynamo import dynamo_backend
