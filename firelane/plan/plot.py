"""Plans as SVG."""

