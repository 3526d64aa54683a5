"""The four engines: rules on values, with time and randomness as arguments."""
