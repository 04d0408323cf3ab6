"""Generated histories of a shop: each user follows a few stories whose volumes come in order, one here, one there.

What comes next depends on where in *each* of the stories the user stands: the last item alone does not tell.
"""

from __future__ import annotations

from regard_workbench.tasks.generated.draws import Draws

STORIES, VOLUMES = 30, 12
FOLLOWED = 3  # stories of a user
USERS = 1500
SHORTEST, LONGEST = 9, 24  # actions of a user


def histories(seed: int) -> dict[str, list[str]]:
    """The items of each user, in time order: "s7v3" is volume 3 of story 7."""
    by_user = {}
    for user in range(USERS):
        draws = Draws("shop", seed, user)
        stories: list[int] = []
        while len(stories) < FOLLOWED:
            story = draws.below(STORIES)
            if story not in stories:
                stories.append(story)
        place = {story: draws.below(VOLUMES // 2) for story in stories}
        items = []
        for _ in range(SHORTEST + draws.below(LONGEST - SHORTEST + 1)):
            story = draws.among(stories)
            items.append(f"s{story}v{place[story]}")
            place[story] = (place[story] + 1) % VOLUMES
        by_user[str(user)] = items
    return by_user
