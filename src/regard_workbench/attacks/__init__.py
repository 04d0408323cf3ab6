"""Attacks on classifiers: budgets, attacks on pixels and words, and what they did to accuracy and attention."""
