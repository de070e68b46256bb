"""Report pages and cards, and the layout, charts and number formats that they share."""
