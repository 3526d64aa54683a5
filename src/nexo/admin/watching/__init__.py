"""Samples the brokers every second: history, alerts, and the web hook that reports them."""
