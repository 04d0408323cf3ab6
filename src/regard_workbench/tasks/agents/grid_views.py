"""What an agent of minigrid sees, remembered by what it depends on.

Minigrid computes each view cell by cell in Python, which takes about fifty times as long as the step itself. A view is
a function of the cells around the agent, its direction and what it carries, and few of them exist: in MemoryS7 some
hundreds. So each is computed once, by minigrid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]  # (width, height, 3): object, colour and state of each cell of the view
MOST = 50_000  # views that are kept; about 50 MiB
_VIEWS: dict[tuple[Any, ...], Picture] = {}


def remember_views(world: Any) -> None:
    """Let an environment look its views up; one whose class computes them in its own way is left as it is."""
    from minigrid.minigrid_env import MiniGridEnv

    kind = type(world)
    plain = all(
        getattr(kind, name) is getattr(MiniGridEnv, name) for name in ("gen_obs", "gen_obs_grid", "get_view_exts")
    )
    if plain and kind.__module__.startswith("minigrid."):
        world.gen_obs = _looked_up(world, world.gen_obs)


def _looked_up(world: Any, computed: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def gen_obs() -> dict[str, Any]:
        key = _depends_on(world)
        picture = _VIEWS.get(key)
        if picture is None:
            picture = computed()["image"]
            picture.setflags(write=False)  # it is handed out again
            if len(_VIEWS) < MOST:
                _VIEWS[key] = picture
        return {"image": picture, "direction": world.agent_dir, "mission": world.mission}

    return gen_obs


def _depends_on(world: Any) -> tuple[Any, ...]:
    """The codes of the cells that the view covers, and where the grid ends: beyond it minigrid sees walls."""
    grid = world.grid
    left, top, right, bottom = (int(edge) for edge in world.get_view_exts())
    first, last = max(left, 0), min(right, grid.width)
    cells: list[Any] = []
    for row in range(max(top, 0), min(bottom, grid.height)):
        cells += grid.grid[row * grid.width + first : row * grid.width + last]
    return (
        world.agent_dir,
        world.agent_view_size,
        world.see_through_walls,
        world.carrying and world.carrying.encode(),
        first - left,
        right - last,
        max(-top, 0),
        max(bottom - grid.height, 0),
        *[cell and cell.encode() for cell in cells],
    )


def drawn_view(picture: Picture, pixels: int = 8) -> NDArray[np.float32]:
    """A view as minigrid draws it, (height, width, 3) from 0 to 1; the agent stands at the bottom and looks up."""
    from minigrid.core.grid import Grid

    grid, visible = Grid.decode(picture)
    drawn = grid.render(pixels, (grid.width // 2, grid.height - 1), agent_dir=3, highlight_mask=visible)
    frame: NDArray[np.float32] = np.asarray(drawn / 255, np.float32)
    frame[:1] = frame[:, :1] = 0  # a line between frames that stand side by side
    return frame
