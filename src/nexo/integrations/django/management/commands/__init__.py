"""``manage.py nexo_worker``."""
