"""What `regard.view` returns: a page that a notebook shows, and that can be written or served."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard.support.display import html_frame

if TYPE_CHECKING:
    from regard_workbench.viewer.page_model import PageModel


@dataclass(frozen=True)
class View:
    """A page that shows what a model attends to. The last line of a notebook's cell shows it there."""

    page_model: PageModel = field(repr=False)

    @property
    def title(self) -> str:
        """What the page is about."""
        return self.page_model.title

    @property
    def sites(self) -> list[str]:
        """The names of the attentions on the page."""
        return [site.name for site in self.page_model.page_sites]

    def __str__(self) -> str:
        return f"{self.title}: {len(self.sites)} attentions"

    def export(self, path: str | Path) -> Path:
        """Write the page as one HTML file that works offline."""
        from regard_workbench.viewer.export import export

        return export(self.page_model, path)

    def serve(self, *, port: int = 0, browser: bool = True) -> None:
        """Serve the page on this machine until Ctrl-C."""
        from regard_workbench.viewer import serve

        serve(self.page_model, port=port, browser=browser)

    def _repr_html_(self) -> str:
        from regard_workbench.viewer.export import rendered
        from regard_workbench.viewer.payload import payload

        return html_frame(rendered(self.page_model, payload(self.page_model)), self.title)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """The widget, whose questions the kernel answers, where anywidget is installed; else the page in a frame."""
        from regard_workbench.viewer.widget import show

        try:
            widget = show(self.page_model)
        except BadValue:  # anywidget is not installed
            return {"text/html": self._repr_html_(), "text/plain": str(self)}
        return widget._repr_mimebundle_(include=include, exclude=exclude)
