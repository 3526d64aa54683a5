"""Topics for threads; generated from the async twin, but for what touches threads."""
