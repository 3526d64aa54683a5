"""What uses the brokers: one actor is one small class around the real client."""
