"""The colours of all figures.

Those of Okabe and Ito, darkened where text is set in them: they can be told apart with colour blindness.
"""

INK, MUTED, GRID = "#1b1f24", "#5b6570", "#d9dde2"
COLOURS = ("#0068a8", "#c64f00", "#00805c", "#a8407c", "#8f6400", "#2f86cc", "#5f656c")
