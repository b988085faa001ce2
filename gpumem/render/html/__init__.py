"""The self-contained page: findings as one HTML file that opens offline.

Owns: HTML, the scripts and styles in assets/, plotly. Must not know: traces' files; no arithmetic beyond layout.
"""
