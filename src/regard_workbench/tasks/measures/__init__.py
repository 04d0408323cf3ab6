"""Measures: how answers are judged.

Here stand the metrics, the counts that they are made of, and the yardsticks beside which a model's score is printed:
simple methods on the same data. What a metric is stands in `metrics`.
"""
