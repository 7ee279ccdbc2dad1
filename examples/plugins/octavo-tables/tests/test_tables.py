"""Runs the conformance kit, as ``octavo plugin test tables`` does."""

from octavo.testing.kit import run
from octavo_registry import PluginHost


def test_the_plugin_passes_the_conformance_kit() -> None:
    """Show the whole report when a check fails."""
    report = run(PluginHost.discover(plugins=["octavo_tables"]), "octavo_tables")
    assert report.passed, report.as_text()
