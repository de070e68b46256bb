"""Names of `tasks.report.wording` for pages that are no templates yet."""

from tasks.report.wording import legible as legible
from tasks.report.wording import visible as visible
