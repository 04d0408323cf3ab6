"""The colours of all figures.

Those of Okabe and Ito, darkened where text is set in them: they can be told apart with colour blindness.
"""

INK, MUTED, GRID = "#1b1f24", "#5b6570", "#d9dde2"
COLOURS = ("#0068a8", "#c64f00", "#00805c", "#a8407c", "#8f6400", "#2f86cc", "#5f656c")
# Lighter ones, for what is drawn on a picture, which may be dark.
ON_PICTURES = ("#e45756", "#4c78a8", "#f2b701", "#54a24b", "#b279a2", "#ff9da6", "#9d755d", "#72b7b2")
