"""The stream broker's service: requests in, engine calls, durable replies out."""
