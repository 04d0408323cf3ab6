"""The viewer: what a model attends to, as a page in the browser, an HTML file or a notebook widget.

>>> # with regard.observe(model) as seen: model(x)
>>> # viewer.show(seen, tokens=["the", "cat", "sat"])          in a notebook
>>> # viewer.export(seen, "page.html", tokens=["the", …])       one file
>>> # viewer.serve(seen, tokens=["the", …])                     a page served on this machine
"""

from __future__ import annotations

from typing import Any

from regard_workbench.viewer.export import export
from regard_workbench.viewer.page_model import PageModel, Variant, page_model_of

__all__ = ["PageModel", "Variant", "export", "page_model_of", "serve", "show"]


def show(seen: Any, tokens: Any = None, **options: Any) -> Any:
    """A widget for notebooks; needs the package anywidget. `tokens`: labels of the positions."""
    from regard_workbench.viewer.widget import show as widget

    return widget(seen, tokens, **options)


def serve(seen: Any, tokens: Any = None, *, port: int = 0, browser: bool = True) -> None:
    """Serve the page on this machine until Ctrl-C."""
    from regard_workbench.viewer.server import Server
    from regard_workbench.viewer.sessions import LAUNCH_SECONDS

    server = Server(page_model_of(seen, tokens), port=port)

    def started() -> None:
        print(f"Open {server.address()}")
        if browser:
            import webbrowser

            webbrowser.open(server.address(LAUNCH_SECONDS))

    server.run(started)
