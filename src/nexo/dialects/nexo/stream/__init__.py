"""The stream broker in our protocol: bytes to use cases of `nexo.services.stream`, and back."""
