"""From folders of comparisons to docs/study.md: reading, judging, drawing, writing. The way in is `../study.py`."""
